// SPDX-License-Identifier: Apache-2.0
// Answers by a chat template: which ids they follow from, what ends them, what caches keep.
#include "train/chat/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/gguf_writer.h"
#include "support/error_message.h"
#include "support/letter_tokenizer.h"
#include "support/tiny_run.h"

namespace anabatic::train {
namespace {

using anabatic::testing::kEndOfText;
using anabatic::testing::kImEnd;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using anabatic::testing::write_letter_tokenizer;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kTemplate =
    "<s>{% for m in messages %}{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}\n"
    "{%- if add_generation_prompt %}assistant {% endif %}";

// A model whose ids all are tokens of the letter tokenizer.
RunConfig chat_run(const TemporaryDirectory& folder, const std::string& source = kTemplate) {
  RunConfig run = tiny_run(folder.path(),
                           "\"vocab_size\": 31, \"eos_token_id\": 28, "
                           "\"max_position_embeddings\": 256");
  run.generate.max_new_tokens = 12;
  write_letter_tokenizer(run.model.path, R"({"eos_token": "<|endoftext|>", "bos_token": "<s>"})");
  if (!source.empty())
    write_file_atomically(std::filesystem::path(run.model.path) / "chat_template.jinja", source);
  return run;
}

OrderedJson message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}
OrderedJson row_of(std::vector<OrderedJson> messages) { return {{"messages", messages}}; }
void nothing(const std::string&) {}

TEST(Chat, AnswersWhatTheModelSaysAfterTheRenderedConversation) {
  const TemporaryDirectory folder;
  const RunConfig run = chat_run(folder);
  Chat chat(run);
  std::string streamed;
  const std::string answer = chat.answer(row_of({message("user", "what is a cat")}),
                                         [&](const std::string& piece) { streamed += piece; });
  EXPECT_EQ(streamed, answer);

  const io::Tokenizer tokenizer = io::Tokenizer::load(run.model.path);
  ModelSession session(run, false);
  std::vector<std::int32_t> ids;
  generate(session, tokenizer.encode("<s>user what is a cat<|im_end|>assistant ", false),
           std::vector<std::int64_t>{kEndOfText, kImEnd},
           [&](std::int32_t id) { ids.push_back(id); });
  EXPECT_EQ(answer, tokenizer.decode(ids, true));
  EXPECT_GT(ids.size(), 1u);
}

TEST(Chat, EndsAtTheTemplatesStopTokenAndAtEos) {
  const TemporaryDirectory folder;
  EXPECT_THAT(Chat(chat_run(folder)).stops(), ElementsAre(kEndOfText, kImEnd));
  // One that takes no such conversation, and one that closes turns with no special token.
  for (const char* source : {"{{ raise_exception('no') }}", "{{ messages[0].content }}. "})
    EXPECT_THAT(Chat(chat_run(folder, source)).stops(), ElementsAre(kEndOfText));
}

TEST(Chat, AnswersTheSameWhateverTheCachesHold) {
  const TemporaryDirectory folder;
  const RunConfig run = chat_run(folder);
  Chat chat(run);
  std::vector<OrderedJson> messages;
  for (const char* turn : {"a cat", "a dog and a cat", "no"}) {
    messages.push_back(message("user", turn));
    const std::string answer = chat.answer(row_of(messages), nothing);
    EXPECT_EQ(answer, Chat(run).answer(row_of(messages), nothing)) << turn;
    messages.push_back(message("assistant", answer));
  }
  // The same conversation once more: all but its last token is there.
  const std::string again = chat.answer(row_of(messages), nothing);
  const std::int64_t length = chat.generator().length();
  EXPECT_EQ(chat.answer(row_of(messages), nothing), again);
  EXPECT_EQ(chat.generator().num_kept(), length - 1);
  EXPECT_EQ(Chat(run).answer(row_of(messages), nothing), again);
  // A shorter one after it shares its beginning alone.
  messages.resize(1);
  EXPECT_EQ(chat.answer(row_of(messages), nothing), Chat(run).answer(row_of(messages), nothing));
  EXPECT_GT(chat.generator().num_kept(), 0);
}

TEST(Chat, TakesTheTemplateThatDataNames) {
  const TemporaryDirectory folder;
  RunConfig run = chat_run(folder, "");
  EXPECT_THAT(testing::message_of([&] { Chat chat(run); }),
              HasSubstr("data.chat_template names another file"));
  run.data.chat_template = folder.path() / "own.jinja";
  write_file_atomically(run.data.chat_template, "{{ messages[0].content }}");
  const std::string got = Chat(run).answer(row_of({message("user", "zz")}), nothing);
  write_file_atomically(run.data.chat_template, "{{ messages[0].content * 2 }}");
  EXPECT_EQ(Chat(run).answer(row_of({message("user", "z")}), nothing), got);
}

TEST(Chat, SaysWhereTheTemplateFails) {
  const TemporaryDirectory folder;
  EXPECT_THAT(
      testing::message_of([&] { Chat chat(chat_run(folder, "a\n{{ messages | nosuch }}")); }),
      AllOf(HasSubstr("chat_template.jinja"), HasSubstr("line 2"), HasSubstr("nosuch")));
  Chat chat(chat_run(
      folder,
      "a\n\n{% if messages[0].role != 'user' %}{{ raise_exception('only users') }}{% endif %}"));
  EXPECT_THAT(testing::message_of([&] { chat.answer(row_of({message("system", "a")}), nothing); }),
              AllOf(HasSubstr("line 3"), HasSubstr("only users")));
  EXPECT_THAT(testing::message_of([&] {
                chat.answer(OrderedJson{{"messages", OrderedJson::array()}}, nothing);
              }),
              HasSubstr("at least one message"));
}

TEST(Chat, ReadsConversationsOfFiles) {
  const TemporaryDirectory folder;
  const std::string file = folder.path() / "m.json";
  const auto read = [&](const char* text) {
    write_file_atomically(file, text);
    return read_conversation(file);
  };
  const std::string list = R"([{"role": "user", "content": "a"}])";
  EXPECT_EQ(read(list.c_str()), OrderedJson({{"messages", OrderedJson::parse(list)}}));
  EXPECT_EQ(read(R"({"messages": [], "tools": []})").size(), 2u);
  const struct {
    const char *text, *message;
  } bad[] = {{"[", "m.json: expected JSON: "},
             {"3", "expected a list of messages, or an object with messages, got 3"},
             {"{}", "expected a list of messages, or an object with messages, got {}"},
             {R"({"messages": [], "tool": 1})", "got tool"}};
  for (const auto& each : bad)
    EXPECT_THAT(testing::message_of([&] { read(each.text); }),
                AllOf(HasSubstr("m.json"), HasSubstr(each.message)));
}

TEST(ChatFormat, IsReadFromAGgufFile) {
  const TemporaryDirectory folder;
  const std::filesystem::path file = folder.path() / "model.gguf";
  const auto write = [&](bool has_template) {
    io::GgufKeys keys;
    keys.add_text("general.architecture", "llama");
    if (has_template) keys.add_text("tokenizer.chat_template", kTemplate);
    io::GgufWriter(file, std::move(keys), {}).finish();
  };
  write(true);
  EXPECT_EQ(io::ChatFormat::load(file).source(), kTemplate);
  write(false);
  EXPECT_THAT(testing::message_of([&] { io::ChatFormat::load(file); }),
              HasSubstr("model.gguf: expected the key tokenizer.chat_template, found none"));
}

}  // namespace
}  // namespace anabatic::train
