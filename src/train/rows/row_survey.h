// SPDX-License-Identifier: Apache-2.0
// Rows of files as train.objective sft reads them, one by one: for people who look at them.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/data/data_format.h"
#include "io/data/rows.h"
#include "io/tokenizer/special_tokens.h"
#include "train/rows/row_encoder.h"

namespace anabatic::train {

struct EncodedRow {
  std::string place;  // file:line
  io::RowKind kind{};
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

// The rows of JSON files in order, until `visit` returns false. A bad row is given to `refuse`, as
// file:line and what is wrong with it. InvalidArgument for a file that is no JSON.
void visit_rows(const std::vector<io::DataFile>& files, const RowEncoder& encoder,
                const std::function<bool(const EncodedRow&)>& visit,
                const std::function<void(const std::string&)>& refuse);

// What many rows are like.
struct RowSurvey {
  std::vector<std::int64_t> lengths, trained;  // tokens of each row, and those that are trained
  std::int64_t num_untrained = 0;              // rows without a trained token
  std::int64_t num_doubled_bos = 0, num_doubled_eos = 0;
  std::vector<std::string> problems;  // the first ten
  std::int64_t num_problems = 0;

  void add(const EncodedRow& row, const io::SpecialTokens& special);
  void add_problem(const std::string& problem);
};

}  // namespace anabatic::train
