// SPDX-License-Identifier: Apache-2.0
#include "train/chat/chat_encoder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "io/chat/trained_tokens.h"
#include "train/tokenize.h"

namespace anabatic::train {
RangedText RangedText::first(std::size_t bytes) const {
  RangedText result{.text = text.substr(0, bytes), .ranges = {}};
  for (const io::AddedTokenRange& range : ranges) {
    result.ranges.push_back(range);
    if (range.end < bytes) continue;
    result.ranges.back().end = bytes;
    break;
  }
  return result;
}

RangedText RangedText::with(std::string_view continuation) const {
  RangedText result{.text = text + std::string(continuation), .ranges = ranges};
  if (!ranges.empty())
    result.ranges.push_back({result.text.size(), io::AddedTokenMatch::kNotSpecial});
  return result;
}

ChatEncoder::ChatEncoder(const RunConfig& run, const io::Tokenizer& tokenizer)
    : tokenizer_(tokenizer),
      format_(io::ChatFormat::load(tokenizer_folder_or_file(run.model.path), run.data.chat_template,
                                   date_of(run.data.now))),
      matches_all_(run.data.allow_special_in_content) {}

RangedText ChatEncoder::ranged(const io::RenderedChat& chat) const {
  return {.text = chat.rendered.text,
          .ranges = matches_all_ ? std::vector<io::AddedTokenRange>() : chat.added_token_ranges()};
}

RangedText ChatEncoder::prompt_of(OrderedJson row) const {
  return ranged(format_.render(std::move(row), true));
}

std::vector<std::int64_t> ChatEncoder::stops_of(std::vector<std::int64_t> stops) const {
  const std::optional<std::int32_t> stop = stop_token();
  if (stop && std::ranges::find(stops, *stop) == stops.end()) stops.push_back(*stop);
  return stops;
}

std::optional<std::int32_t> ChatEncoder::stop_token() const {
  const auto turn = [](const char* role) { return OrderedJson{{"role", role}, {"content", "x"}}; };
  try {
    const io::RenderedChat chat =
        format_.render({{"messages", OrderedJson::array({turn("user"), turn("assistant")})}});
    const io::EncodedText tokens =
        tokenizer_.encode_with_begins(chat.rendered.text, chat.added_token_ranges());
    const auto is_special = [&](std::size_t i) { return tokenizer_.is_special(tokens.ids[i]); };
    const io::TrainedTokens trained =
        io::trained_tokens(chat, io::LossOn::kAssistant, tokens.begins, is_special);
    for (std::size_t i = tokens.ids.size(); i-- > 0;)
      if (trained.weights[i] != 0 && is_special(i)) return tokens.ids[i];
  } catch (const InvalidArgument&) {
    // A template may ask for more than these turns.
  }
  return std::nullopt;
}

}  // namespace anabatic::train
