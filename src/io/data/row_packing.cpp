// SPDX-License-Identifier: Apache-2.0
#include "io/data/row_packing.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "base/error.h"
#include "io/data/shuffle.h"

namespace anabatic::io {
namespace {

constexpr int kMostNamed = 10;
constexpr std::int64_t kDocumentsAtOnce = 4096;

// Trained tokens of a row: every one but its first where the file has no weights.
std::int64_t num_trained(const TokenFile& file, const Row& row) {
  if (!file.weights) return std::max(row.length - 1, 0);
  return row.length == 0 ? 0 : file.weights->num_trained(row.begin + 1, row.begin + row.length);
}

class RowChooser {
 public:
  RowChooser(std::span<const TokenFile> files, const RowOptions& options, RowCounts& counts)
      : files_(files), options_(options), counts_(counts) {}

  std::vector<Row> run() {
    for (std::size_t file = 0; file < files_.size(); ++file) add_file(file);
    ANABATIC_REQUIRE(num_long_ == 0,
                     "[data] expected rows of at most {} tokens (data.max_length, "
                     "data.truncation: error), got {} longer ones:{}",
                     options_.max_length, num_long_, named_);
    return std::move(rows_);
  }

 private:
  void add_file(std::size_t file) {
    const IndexedFile& tokens = files_[file].tokens;
    const std::int64_t count = tokens.num_documents();
    std::vector<std::int64_t> begins;
    for (std::int64_t first = 0; first < count; first += kDocumentsAtOnce) {
      begins.resize(static_cast<std::size_t>(std::min(kDocumentsAtOnce, count - first) + 1));
      tokens.document_begins(first, std::span(begins).first(begins.size() - 1));
      begins.back() = tokens.document_begin(first + std::ssize(begins) - 1);
      const auto group = static_cast<std::size_t>(options_.group());
      for (std::size_t i = 0; i + group < begins.size(); i += group)
        add(file, first + static_cast<std::int64_t>(i), std::span(begins).subspan(i, group + 1));
    }
  }

  // Rows that are kept or left out together, and where the last one ends.
  void add(std::size_t file, std::int64_t document, std::span<const std::int64_t> begins) {
    const std::int64_t count = std::ssize(begins) - 1;
    counts_.rows += count;
    std::vector<Row> rows;
    std::int64_t trained = 0;
    for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
      const auto row =
          cut(file, document + static_cast<std::int64_t>(i), begins[i], begins[i + 1] - begins[i]);
      if (!row) {
        counts_.dropped_for_length += count;
        return;
      }
      rows.push_back(*row);
    }
    for (const Row& row : rows) {
      const std::int64_t of_row = num_trained(files_[file], row);
      if (of_row == 0) {
        counts_.dropped_untrained += count;
        return;
      }
      trained += of_row;
    }
    counts_.trained += trained;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      counts_.truncated += rows[i].length < begins[i + 1] - begins[i] ? 1 : 0;
      counts_.tokens += rows[i].length;
      rows_.push_back(rows[i]);
    }
  }

  // What is kept of a document; nothing of one that is too long, where the run leaves it out or
  // ends.
  std::optional<Row> cut(std::size_t file, std::int64_t document, std::int64_t begin,
                         std::int64_t length) {
    Row row{begin, static_cast<std::int32_t>(std::min(length, options_.max_length)),
            static_cast<std::int32_t>(file)};
    if (length > options_.max_length) {
      switch (options_.truncation) {
        case Truncation::kError:
          if (num_long_++ < kMostNamed)
            named_ += fmt::format("\n  {}, row {} (from 0): {} tokens",
                                  files_[file].source.path.string(), document, length);
          return std::nullopt;
        case Truncation::kDrop:
          return std::nullopt;
        case Truncation::kKeepEnd:
          row.begin += length - row.length;
          break;
        case Truncation::kKeepStart:
          break;
      }
    }
    return row;
  }

  std::span<const TokenFile> files_;
  const RowOptions& options_;
  RowCounts& counts_;
  std::vector<Row> rows_;
  std::int64_t num_long_ = 0;
  std::string named_;
};

}  // namespace

std::optional<Truncation> truncation_from_string(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, Truncation>, 4> kWords{
      {{"keep_start", Truncation::kKeepStart},
       {"keep_end", Truncation::kKeepEnd},
       {"drop", Truncation::kDrop},
       {"error", Truncation::kError}}};
  for (const auto& [word, truncation] : kWords)
    if (word == text) return truncation;
  return std::nullopt;
}

std::vector<Row> choose_rows(std::span<const TokenFile> files, const RowOptions& options,
                             RowCounts& counts) {
  return RowChooser(files, options, counts).run();
}

namespace {

// Packs groups as rows of their summed length, which begin at the number of their first row.
std::vector<std::int64_t> pack_groups(std::vector<Row>& rows, std::int64_t capacity,
                                      std::uint64_t seed, std::int64_t group) {
  std::vector<Row> groups;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i % static_cast<std::size_t>(group) == 0)
      groups.push_back({.begin = static_cast<std::int64_t>(i)});
    groups.back().length += rows[i].length;
  }
  std::vector<std::int64_t> begins = pack_rows(groups, capacity, seed);
  std::vector<Row> sorted;
  sorted.reserve(rows.size());
  for (const Row& of_group : groups)
    for (std::int64_t i = 0; i < group; ++i)
      sorted.push_back(rows[static_cast<std::size_t>(of_group.begin + i)]);
  rows = std::move(sorted);
  for (std::int64_t& begin : begins) begin *= group;
  return begins;
}

}  // namespace

std::vector<std::int64_t> pack_rows(std::vector<Row>& rows, std::int64_t capacity,
                                    std::uint64_t seed, std::int64_t group) {
  if (group > 1) return pack_groups(rows, capacity, seed, group);
  const auto count = static_cast<std::uint64_t>(rows.size());
  // Longest first: a counting sort over rows in their drawn order.
  const Permutation drawn(count, seed);
  std::vector<std::int64_t> begins(static_cast<std::size_t>(capacity) + 2, 0);
  const auto rank = [&](const Row& row) { return static_cast<std::size_t>(capacity - row.length); };
  for (const Row& row : rows) {
    ANABATIC_CHECK(row.length <= capacity, "[data] a row of {} tokens in samples of {}", row.length,
                   capacity);
    ++begins[rank(row) + 1];
  }
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<Row> sorted(rows.size());
  for (std::uint64_t i = 0; i < count; ++i) {
    const Row& row = rows[static_cast<std::size_t>(drawn(i))];
    sorted[static_cast<std::size_t>(begins[rank(row)]++)] = row;
  }
  std::map<std::int64_t, std::vector<std::int64_t>> by_room;  // samples that are not full
  std::vector<std::int64_t> sample_of(rows.size()), sizes;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::int64_t length = sorted[i].length;
    std::int64_t room = capacity, sample = std::ssize(sizes);
    if (const auto fit = by_room.lower_bound(length); fit != by_room.end()) {
      room = fit->first;
      sample = fit->second.back();
      fit->second.pop_back();
      if (fit->second.empty()) by_room.erase(fit);
    } else {
      sizes.push_back(0);
    }
    sample_of[i] = sample;
    ++sizes[static_cast<std::size_t>(sample)];
    if (room > length) by_room[room - length].push_back(sample);
  }
  std::vector<std::int64_t> first(sizes.size() + 1, 0);
  std::partial_sum(sizes.begin(), sizes.end(), first.begin() + 1);
  std::vector<std::int64_t> next(first.begin(), first.end() - 1);
  for (std::size_t i = 0; i < sorted.size(); ++i)
    rows[static_cast<std::size_t>(next[static_cast<std::size_t>(sample_of[i])]++)] = sorted[i];
  return first;
}

}  // namespace anabatic::io
