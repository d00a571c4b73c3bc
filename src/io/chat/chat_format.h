// SPDX-License-Identifier: Apache-2.0
// A conversation as the text of a model's chat template, with who wrote what.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "io/template/template.h"
#include "io/tokenizer/tokenizer.h"

namespace anabatic::io {

// A message of the conversation in the text. Bytes are those of its fields but `role`.
struct ChatMessage {
  bool is_assistant = false;
  double weight = 1;      // "weight" of the message, 0 with "train": false
  bool has_text = false;  // it has such bytes
  bool begins_with_call = false;
  std::size_t begin = 0, end = 0;  // from its first one to after its last
  std::size_t first = SIZE_MAX;    // its first byte, `role` included; none if SIZE_MAX
};

struct RenderedChat {
  std::shared_ptr<const nlohmann::ordered_json> context;  // what the spans point into
  RenderedText rendered;
  std::vector<ChatMessage> messages;
  std::string generation_prompt;  // what the template appends for one, "" if that cannot be told
  bool has_generation_blocks = false;

  // Where a tokenizer may match added tokens: anywhere in what the template wrote and in roles, in
  // what an assistant wrote those that are not special, elsewhere none.
  std::vector<AddedTokenRange> added_token_ranges() const;
};

class ChatFormat {
 public:
  // Reads a model directory: chat_template.jinja, else chat_template.json, else
  // tokenizer_config.json; or a GGUF file. `template_file`, if not empty, goes before them.
  // InvalidArgument if there is none.
  static ChatFormat load(const std::filesystem::path& model,
                         const std::filesystem::path& template_file = {},
                         const RenderTime& now = {});
  // `named_tokens` is an object such as {"bos_token": "<s>"}.
  ChatFormat(const std::string& source, const std::string& name,
             const nlohmann::ordered_json& named_tokens, const RenderTime& now = {});

  // `row` has `messages`, and may have `tools` (a list or its JSON text), `documents` and
  // `chat_template_kwargs`. InvalidArgument says which part is not as expected.
  RenderedChat render(nlohmann::ordered_json row, bool add_generation_prompt = false) const;

  const std::string& name() const { return name_; }  // of its file
  const std::string& source() const { return source_; }
  // Those of the source with one of these texts, counted from 1.
  std::vector<std::int64_t> lines_with(const std::vector<std::string>& texts) const;
  const nlohmann::ordered_json& named_tokens() const { return *named_tokens_; }

 private:
  struct Prompts {
    std::mutex mutex;
    std::map<std::string, std::string> by_variables;
  };
  std::string generation_prompt(const ChatTemplate& chosen, const nlohmann::ordered_json& context,
                                bool has_variables) const;

  std::string name_, source_;
  ChatTemplate default_;
  std::unique_ptr<ChatTemplate> tool_use_;  // null: the default one
  std::shared_ptr<const nlohmann::ordered_json> named_tokens_;
  RenderTime now_;
  std::unique_ptr<Prompts> prompts_ = std::make_unique<Prompts>();
};

}  // namespace anabatic::io
