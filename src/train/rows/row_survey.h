// SPDX-License-Identifier: Apache-2.0
// Rows of files as train.objective sft reads them, one by one: for people who look at them.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/data/data_format.h"
#include "io/data/row_packing.h"
#include "io/data/rows.h"
#include "io/tokenizer/special_tokens.h"
#include "train/rows/row_encoder.h"

namespace anabatic::train {

struct EncodedRow {
  std::string place;  // file:line
  io::RowKind kind{};
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  RowNotes notes;
};

// The rows of JSON files in order, until `visit` returns false. A bad row is given to `refuse`, as
// file:line and what is wrong with it. InvalidArgument for a file that is no JSON.
void visit_rows(const std::vector<io::DataFile>& files, const RowEncoder& encoder,
                const std::function<bool(const EncodedRow&)>& visit,
                const std::function<void(const std::string&)>& refuse);

// How long rows may be, and what becomes of longer ones, as a run has it.
struct RowLimit {
  std::int64_t tokens = 0, of_completion = 0;  // the latter with a prompt, of a pair
  io::Truncation truncation = io::Truncation::kKeepStart;
};
RowLimit row_limit_of(const RunConfig& run);

// The tokens of a row that are left: from `begin` to `end`; none of one that is left out.
struct KeptTokens {
  std::size_t begin = 0, end = 0;
};
KeptTokens kept_of(const EncodedRow& row, const std::optional<RowLimit>& limit);

// One kind of thing to know of rows: how often it was found, and where first.
struct Finding {
  std::string what;
  bool is_error = true;
  std::int64_t count = 0;
  std::vector<std::string> first;  // ten: file:line and what is there
};

// What many rows are like. Nothing in it rests on what encoding them said of their masks, but for
// turns that it could not place at all.
class RowSurvey {
 public:
  // All of them must outlive it. With a limit, rows are counted as it leaves them.
  RowSurvey(const RunConfig& run, const io::Tokenizer& tokenizer, const io::SpecialTokens& special,
            const RowEncoder& encoder, std::optional<RowLimit> limit = std::nullopt);

  void add(const EncodedRow& row);
  void add_bad_row(const std::string& problem);

  const std::vector<std::int64_t>& lengths() const { return lengths_; }  // tokens of each row
  const std::vector<std::int64_t>& trained() const { return trained_; }  // those that are trained
  std::vector<Finding> findings() const;
  // Whether there are rows, and no error was found.
  bool is_good() const;

 private:
  void find_doubled(const EncodedRow& row);
  void find_ends(const EncodedRow& row);

  const io::Tokenizer& tokenizer_;
  const io::SpecialTokens& special_;
  const RowEncoder& encoder_;
  std::optional<RowLimit> limit_;
  bool has_turns_;  // data.loss_on trains some tokens of a row alone
  std::vector<std::int64_t> lengths_, trained_;
  Finding bad_, untrained_, unstopped_, doubled_bos_, doubled_eos_, begun_by_space_, suppressed_,
      left_out_, long_;
};

}  // namespace anabatic::train
