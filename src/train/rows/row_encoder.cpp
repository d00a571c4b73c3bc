// SPDX-License-Identifier: Apache-2.0
#include "train/rows/row_encoder.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "io/data/rows.h"

namespace anabatic::train {

RowEncoder::RowEncoder(const RunConfig& run, const io::Tokenizer& tokenizer, io::DocumentEnds ends)
    : tokenizer_(tokenizer), ends_(std::move(ends)), loss_on_(run.data.loss_on) {}

void RowEncoder::encode(OrderedJson row, io::RowKind kind, std::vector<std::int32_t>& ids,
                        std::vector<float>& weights) const {
  const io::TrainingRow read = io::read_row(std::move(row), kind, io::TokenizeOptions().json_field);
  if (read.is_chat)
    throw Unsupported("rows of messages need a chat template, and none can be read yet");
  encode_text(read, ids, weights);
}

void RowEncoder::encode_text(const io::TrainingRow& row, std::vector<std::int32_t>& ids,
                             std::vector<float>& weights) const {
  const std::size_t first = ids.size();
  tokenizer_.encode_append(row.text, false, ids);
  std::size_t num_untrained = 0;
  if (row.prompt_bytes > 0 && loss_on_ != "all") {
    const std::vector<std::int32_t> prompt =
        tokenizer_.encode(std::string_view(row.text).substr(0, row.prompt_bytes), false);
    const auto whole = ids.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = std::mismatch(prompt.begin(), prompt.end(), whole, ids.end()).first;
    num_untrained = static_cast<std::size_t>(end - prompt.begin());
    if (end != prompt.end()) ++num_joined_;
  }
  num_untrained += ends_.put_before(ids, first);  // nothing comes before BOS
  ends_.put_behind(ids, first);
  weights.resize(ids.size(), 1.0f);
  std::fill_n(weights.begin() + static_cast<std::ptrdiff_t>(first), num_untrained, 0.0f);
}

std::string RowEncoder::rules() const { return "loss_on " + loss_on_; }

void RowEncoder::log_counts() const {
  if (num_joined_ > 0)
    log_info("data: in {} rows the prompt's last tokens go on into the completion, and are trained",
             num_joined_.load());
}

std::shared_ptr<const RowEncoder> add_rows(io::TokenizeOptions& options, const RunConfig& run,
                                           const io::Tokenizer& tokenizer) {
  auto encoder = std::make_shared<const RowEncoder>(run, tokenizer, options.ends);
  options.has_rows = true;
  options.row_rules = encoder->rules();
  options.encode_row = [encoder](OrderedJson row, io::RowKind kind, std::vector<std::int32_t>& ids,
                                 std::vector<float>& weights) {
    encoder->encode(std::move(row), kind, ids, weights);
  };
  return encoder;
}

}  // namespace anabatic::train
