// SPDX-License-Identifier: Apache-2.0
// Conversations as token ids, in the words of a model's chat template.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat/chat_format.h"
#include "io/tokenizer/tokenizer.h"
#include "train/run_config.h"

namespace anabatic::train {

// A text, and where the tokenizer matches added tokens in it: everywhere if there are no ranges.
struct RangedText {
  std::string text;
  std::vector<io::AddedTokenRange> ranges;

  // Cut after so many bytes.
  RangedText first(std::size_t bytes) const;
  // With what the model says after it, which has no special tokens.
  RangedText with(std::string_view continuation) const;
};

// Const members may be called from many threads at once.
class ChatEncoder {
 public:
  // `tokenizer` must outlive it. InvalidArgument if model.path has no chat template and
  // data.chat_template names none.
  ChatEncoder(const RunConfig& run, const io::Tokenizer& tokenizer);

  const io::ChatFormat& format() const { return format_; }
  RangedText ranged(const io::RenderedChat& chat) const;
  // A conversation up to where the assistant's next turn begins.
  RangedText prompt_of(nlohmann::ordered_json row) const;
  // The ids that end an answer: those that end any generation, and the special token with which the
  // template closes an assistant's last turn.
  std::vector<std::int64_t> stops_of(std::vector<std::int64_t> stops) const;

 private:
  // Nothing if the template closes turns with none, or takes no turns of a user and an assistant.
  std::optional<std::int32_t> stop_token() const;

  const io::Tokenizer& tokenizer_;
  io::ChatFormat format_;
  bool matches_all_ = false;  // data.allow_special_in_content
};

}  // namespace anabatic::train
