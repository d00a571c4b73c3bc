// SPDX-License-Identifier: Apache-2.0
// Rows of JSON as token ids with weights, as train.objective sft and dpo read them.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/chat/trained_tokens.h"
#include "io/data/tokenize_files.h"
#include "io/tokenizer/special_tokens.h"
#include "io/tokenizer/tokenizer.h"
#include "train/chat/chat_encoder.h"
#include "train/run_config.h"

namespace anabatic::train {

// What a row has that its ids and weights do not say, for people who look at it.
struct RowNotes {
  bool is_chat = false;
  bool has_generation_blocks = false;  // of the template: it says itself where turns end
  std::vector<std::size_t> unstopped;  // turns without a trained stop token, by message
  // Turns that train white space of the template in front of their own text: the generation prompt
  // lacks it.
  std::vector<std::size_t> begun_by_space;
  std::vector<std::int32_t> suppressed;  // special tokens in content that were not matched
  // Messages that the template writes nothing of, with their roles.
  std::vector<std::pair<std::size_t, std::string>> left_out;
};

// Const members may be called from many threads at once.
class RowEncoder {
 public:
  // `tokenizer` must outlive it. A chat template that is missing or bad is an error of the first
  // row of messages, io::WrongForAllRows, unless data.chat_template names it.
  RowEncoder(const RunConfig& run, const io::Tokenizer& tokenizer, io::SpecialTokens special);

  // Appends a row, BOS and EOS included, and where it ends. A token weighs 1, or as its message
  // says, where data.loss_on trains it, else 0. Of a pair it appends two rows, each the prompt and
  // a completion, which weighs 1. InvalidArgument for a bad row. With `notes`, one that trains too
  // little is not bad.
  void encode(OrderedJson row, io::RowKind kind, std::vector<std::int32_t>& ids,
              std::vector<float>& weights, std::vector<std::size_t>& ends,
              RowNotes* notes = nullptr) const;

  // "FILE, line 3, 7": where the chat template writes a token; "" for no template, and no such
  // line.
  std::string template_lines_of(std::int32_t id) const;

  // All besides the tokenizer and its special tokens that ids and weights follow from.
  std::string rules() const;

  // Logs what rows had that their user may not expect.
  void log_counts() const;

 private:
  void encode_text(const io::TrainingRow& row, std::vector<std::int32_t>& ids,
                   std::vector<float>& weights) const;
  void encode_chat(io::TrainingRow row, std::vector<std::int32_t>& ids, std::vector<float>& weights,
                   RowNotes* notes) const;
  void encode_pair(const io::PreferenceRow& row, std::vector<std::int32_t>& ids,
                   std::vector<float>& weights, std::vector<std::size_t>& ends) const;
  // The whole prompt, and the prompt with a completion.
  std::vector<std::int32_t> encode_prompt(const io::PreferenceRow& row) const;
  std::vector<std::int32_t> encode_with(const io::PreferenceRow& row,
                                        const OrderedJson& completion) const;
  std::vector<std::int32_t> encode_messages(const io::PreferenceRow& row, OrderedJson messages,
                                            bool add_generation_prompt) const;
  void require_template() const;
  void require_trained(const io::RenderedChat& chat, const io::TrainedTokens& trained) const;

  const io::Tokenizer& tokenizer_;
  io::SpecialTokens special_;
  RunConfig::Data data_;
  std::optional<ChatEncoder> chat_;
  std::string chat_problem_;                         // why there is no chat_
  mutable std::atomic<std::int64_t> num_closed_{0};  // rows that EOS was appended to
  mutable std::atomic<std::int64_t> num_joined_{0};  // rows with a token of prompt and completion
};

// Lets `options` read rows with an encoder, which lives as long as they do.
std::shared_ptr<const RowEncoder> add_rows(io::TokenizeOptions& options, const RunConfig& run,
                                           const io::Tokenizer& tokenizer,
                                           const io::SpecialTokens& special);

}  // namespace anabatic::train
