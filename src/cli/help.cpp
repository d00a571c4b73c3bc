// SPDX-License-Identifier: Apache-2.0
#include "cli/help.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "anabatic/version.h"
#include "base/error.h"
#include "cli/arguments.h"
#include "cli/standard_output.h"
#include "train/config/key_verbs.h"

namespace anabatic::cli {
namespace {

constexpr std::size_t kWidth = 100;

// `text` in lines of at most kWidth, each after `indent` spaces.
std::string wrapped(std::string_view text, std::size_t indent) {
  std::string out, line;
  const auto end_line = [&] {
    out += std::string(indent, ' ') + line + "\n";
    line.clear();
  };
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (!line.empty() && indent + line.size() + 1 + end > kWidth) end_line();
    line += (line.empty() ? "" : " ") + std::string(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  end_line();
  return out;
}

std::string_view section_of(const train::ConfigKey& key) {
  return std::string_view(key.name).substr(0, key.name.find('.'));
}

std::string default_of(const train::ConfigKey& key) {
  std::string shown = key.show(train::RunConfig{});
  return shown == "\"\"" || shown == "[]" || shown == "{}" ? "empty" : shown;
}

std::string usage_of(const Verb& verb) {
  std::string text = fmt::format("usage: anabatic {}", verb.name);
  if (std::string_view positional = verb.positional; !positional.empty()) {
    const bool optional = positional.back() == '?';
    if (optional) positional.remove_suffix(1);
    text += optional ? fmt::format(" [{}]", positional) : fmt::format(" {}", positional);
  }
  for (const VerbOption& option : verb.options)
    if (option.required) text += fmt::format(" {} {}", option.name, option.value);
  if (verb.takes_config_keys) text += " [--KEY VALUE ...]";
  return text + "\n";
}

std::string options_of(const Verb& verb) {
  std::string text = "\noptions\n";
  for (const VerbOption& option : verb.options) {
    text += fmt::format("  {}", option.name);
    if (!option.is_flag) text += fmt::format(" {}{}", option.value, option.is_list ? " ..." : "");
    text += option.required ? "  (required)\n" : "\n";
    text += wrapped(option.help, 6);
  }
  return text + "  --help\n      Print this.\n";
}

std::string keys_of(const Verb& verb) {
  std::string text, section;
  for (const train::ConfigKey& key : train::config_keys()) {
    if (!train::reads_key(verb.name, key.name)) continue;
    if (section_of(key) != section) {
      section = section_of(key);
      text += fmt::format("\n{}: {}\n", section, train::section_title(section));
    }
    const std::string_view alias = alias_of(key.name);
    text += fmt::format(
        "  --{}{}  {}{}, default {}\n", key.name, alias.empty() ? "" : fmt::format(", {}", alias),
        key.type, key.allowed.empty() ? "" : fmt::format(" ({})", key.allowed), default_of(key));
    text += wrapped(key.help, 6);
  }
  if (text.empty()) return text;
  const bool takes_file = verb.positional.find("CONFIG") != std::string_view::npos;
  return "\nkeys: each can be given as a flag, --KEY VALUE" +
         std::string(takes_file ? ", or in CONFIG.yaml; flags win" : "") + "\n" + text;
}

// For a cell of a table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

}  // namespace

std::string overview() {
  std::string text = fmt::format(
      "anabatic {}: trains mixture-of-experts language models on the cores of a CPU, from text "
      "and\n"
      "a Hugging Face model directory to a trained model that Hugging Face loads.\n\n"
      "usage: anabatic VERB ...\n\n",
      kVersion);
  for (const Verb* verb : all_verbs()) text += fmt::format("  {:<10} {}\n", verb->name, verb->help);
  return text +
         "\nto begin with, where MODEL_DIR has config.json, tokenizer.json and weights\n"
         "  anabatic plan MODEL_DIR\n"
         "  anabatic train --model.path MODEL_DIR --data.train text.jsonl --train.output run\n"
         "  anabatic generate --model.path run --prompt \"Once upon a time\"\n\n"
         "anabatic VERB --help lists the options of a verb; anabatic doctor describes this "
         "machine.\n";
}

std::string help_of(const Verb& verb) {
  std::string text = fmt::format("anabatic {}: {}\n\n", verb.name, verb.help) + usage_of(verb);
  text += options_of(verb);
  if (verb.takes_config_keys) text += keys_of(verb);
  return text;
}

std::string keys_markdown() {
  std::string text =
      "# Keys of a run\n\n"
      "`anabatic help --markdown` prints this page from the table of keys.\n"
      "Each key can be given as a flag, `--train.steps 100`, or in `CONFIG.yaml`, "
      "`train: {steps: 100}`. Flags win.\n"
      "`anabatic VERB --help` lists the keys of a verb.\n";
  std::string section;
  for (const train::ConfigKey& key : train::config_keys()) {
    if (section_of(key) != section) {
      section = section_of(key);
      text += fmt::format(
          "\n## {}: {}\n\n| key | type | allowed | default | what it does | read by |\n"
          "|---|---|---|---|---|---|\n",
          section, train::section_title(section));
    }
    text += fmt::format("| `{}` | {} | {} | `{}` | {} | {} |\n", key.name, key.type,
                        cell(key.allowed), default_of(key), cell(key.help),
                        fmt::join(train::verbs_reading(key.name), ", "));
  }
  return text;
}

namespace {

int run_help(const Invocation& invocation) {
  const bool has_verb = !invocation.positionals.empty();
  ANABATIC_REQUIRE(!invocation.has("--markdown") || !has_verb,
                   "[help] expected a verb or --markdown, got both");
  print_output("{}", invocation.has("--markdown") ? keys_markdown()
                     : has_verb                   ? help_of(find_verb(invocation.positionals[0]))
                                                  : overview());
  return 0;
}

}  // namespace

const Verb& help_verb() {
  static const Verb verb{"help",
                         "print this text, or the options of a verb",
                         "VERB?",
                         {{.name = "--markdown",
                           .help = "Print every key as Markdown: docs/reference/keys.md.",
                           .is_flag = true}},
                         false,
                         run_help};
  return verb;
}

}  // namespace anabatic::cli
