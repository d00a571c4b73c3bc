// SPDX-License-Identifier: Apache-2.0
// What a model answers in a conversation, in the words of its chat template.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "io/tokenizer/special_tokens.h"
#include "io/tokenizer/tokenizer.h"
#include "train/chat/chat_encoder.h"
#include "train/generate.h"
#include "train/model_session.h"
#include "train/run_config.h"

namespace anabatic::train {

class Chat {
 public:
  // Reads tokenizer and template of run.model.path; weights are read for the first answer.
  explicit Chat(const RunConfig& run);

  // The assistant's next turn. `row` has `messages` and may have what ChatFormat::render takes
  // besides. Ends at the template's stop token, EOS, or generate.max_new_tokens. Calls `emit` with
  // each piece. Caches keep what the conversation shares with the one before.
  std::string answer(const nlohmann::ordered_json& row,
                     const std::function<void(const std::string&)>& emit);

  // Ids that end an answer.
  const std::vector<std::int64_t>& stops() const { return stops_; }
  const Generator& generator() const { return generator_; }

 private:
  ModelSession session_;
  io::Tokenizer tokenizer_;
  ChatEncoder encoder_;
  io::SpecialTokens special_;
  std::vector<std::int64_t> stops_;
  Generator generator_;
};

// A conversation in a file: a list of messages, or an object with `messages` and perhaps `tools`,
// `documents` and `chat_template_kwargs`. InvalidArgument names the file.
nlohmann::ordered_json read_conversation(const std::string& file);

}  // namespace anabatic::train
