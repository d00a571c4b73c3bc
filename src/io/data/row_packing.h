// SPDX-License-Identifier: Apache-2.0
// Which rows of token files are trained on, and which sample holds which of them whole.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "io/data/token_files.h"

namespace anabatic::io {

// What becomes of a row that is longer than it may be.
enum class Truncation { kKeepStart, kKeepEnd, kDrop, kError };
std::optional<Truncation> truncation_from_string(std::string_view text);

// A document of a file, or the part of it that is kept.
struct Row {
  std::int64_t begin = 0;  // token in the file
  std::int32_t length = 0, file = 0;
};

struct RowCounts {                       // of pairs, completions
  std::int64_t rows = 0;                 // of the files
  std::int64_t truncated = 0;            // of them, shortened
  std::int64_t dropped_for_length = 0;   // not kept at all
  std::int64_t dropped_untrained = 0;    // had no trained token, or lost them all
  std::int64_t tokens = 0, trained = 0;  // of the rows that are kept
};

struct RowOptions {
  std::int64_t max_length = 0;  // tokens of a row
  Truncation truncation = Truncation::kKeepStart;
  bool are_pairs = false;  // rows 2i and 2i + 1 are kept or left out together

  std::int64_t group() const { return are_pairs ? 2 : 1; }
};

// The rows that are kept, in the order of the files. A row's first token is no label, so it is not
// trained. InvalidArgument, naming up to ten of them, for rows that are too long with
// Truncation::kError.
std::vector<Row> choose_rows(std::span<const TokenFile> files, const RowOptions& options,
                             RowCounts& counts);

// Best fit, decreasing: each row, or `group` of them that follow each other, goes to the fullest
// sample of `capacity` tokens that has room for it. Rows of one length come in an order drawn by
// `seed`. Sorts `rows` by sample and returns where the samples begin, and the number of rows at
// last. Linear but for the search among fill levels.
std::vector<std::int64_t> pack_rows(std::vector<Row>& rows, std::int64_t capacity,
                                    std::uint64_t seed, std::int64_t group = 1);

}  // namespace anabatic::io
