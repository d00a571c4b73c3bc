// SPDX-License-Identifier: Apache-2.0
#include "train/generate.h"

#include <unistd.h>

#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "train/chat/chat.h"

namespace anabatic::cli {
namespace {

void say(const std::string& text) {
  write_output(text);
  flush_output();
}

// A turn of the user is a line of standard input, and so is each answer ended with a line break.
void converse(train::Chat& chat) {
  const bool is_terminal = ::isatty(STDIN_FILENO) == 1;
  OrderedJson row{{"messages", OrderedJson::array()}};
  OrderedJson& messages = row["messages"];
  const auto add = [&](const char* role, std::string content) {
    messages.push_back({{"role", role}, {"content", std::move(content)}});
  };
  for (std::string line;;) {
    if (is_terminal) write_progress(stderr, "> ");
    if (!std::getline(std::cin, line)) break;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    add("user", line);
    add("assistant", chat.answer(row, say));
    say("\n");
  }
  if (is_terminal) write_progress(stderr, "\n");
}

int run_generate(const Invocation& invocation) {
  const train::RunConfig config = train::load_run_config("", invocation.overrides);
  const bool has_messages = invocation.has("--messages"), has_prompt = invocation.has("--prompt"),
             is_chat = has_messages || invocation.has("--chat");
  ANABATIC_REQUIRE(
      is_chat != has_prompt,
      "[generate] expected --prompt TEXT, which is continued, or --chat or --messages, got {}",
      is_chat ? "both" : "neither");
  if (has_prompt) {
    train::generate_text(config, invocation.value("--prompt"), say);
    return 0;
  }
  OrderedJson row;
  if (has_messages) row = train::read_conversation(invocation.value("--messages"));
  train::Chat chat(config);
  if (has_messages)
    chat.answer(row, say);
  else
    converse(chat);
  return 0;
}

}  // namespace

const Verb& generate_verb() {
  static const Verb verb{
      "generate",
      "continue a prompt, or answer in a chat; standard output gets only what the model says",
      "",
      {{.name = "--prompt", .help = "the text to continue"},
       {.name = "--chat",
        .help = "answer each line of standard input as a user's turn, by the chat template",
        .is_flag = true},
       {.name = "--messages",
        .help = "answer this conversation once, by the chat template (JSON: a list of messages, or "
                "an object with messages and tools)",
        .value = "FILE"}},
      true,
      run_generate};
  return verb;
}

}  // namespace anabatic::cli
