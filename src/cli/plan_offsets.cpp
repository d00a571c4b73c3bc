// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_offsets.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <limits>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cli/standard_output.h"
#include "plan/offset_search.h"

namespace anabatic::cli {
namespace {

constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 26;
constexpr std::size_t kMaxRows = 100'000;  // greedy placement compares every pair
constexpr double kSeconds = 55;

constexpr std::array<std::string_view, 4> kColumns{"id", "lower", "upper", "size"};
enum Column : std::size_t { kId, kLower, kUpper, kSize };

struct Row {
  std::string_view line;
  std::array<std::string_view, kColumns.size()> fields;
  std::int64_t lower = 0, upper = 0, size = 0;
};

std::string_view trim(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(trim(text.substr(begin, end - begin)));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

// Spreadsheets begin UTF-8 with a byte order mark.
std::string_view without_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

// Text of the file for a message, which may be binary or long.
std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 40)) result += c >= ' ' && c <= '~' ? c : '?';
  return "'" + result + (text.size() > 40 ? "...'" : "'");
}

class Reader {
 public:
  Reader(std::string_view text, const std::filesystem::path& file)
      : file_(file.string()), lines_(split(without_mark(text), '\n')) {}

  std::vector<Row> read() {
    read_header();
    std::vector<Row> rows;
    std::set<std::string_view> ids;
    std::int64_t total = 0;
    for (line_ = 2; line_ <= lines_.size(); ++line_) {
      if (lines_[line_ - 1].empty()) continue;
      ANABATIC_REQUIRE(rows.size() < kMaxRows, "{}expected at most {} buffers", here(), kMaxRows);
      const Row& row = rows.emplace_back(read_row());
      ANABATIC_REQUIRE(ids.insert(row.fields[kId]).second, "{}the id {} appears twice", here(),
                       shown(row.fields[kId]));
      ANABATIC_REQUIRE(row.size <= (std::int64_t{1} << 62) - total,
                       "{}the sum of sizes exceeds 2^62", here());
      total += row.size;
    }
    return rows;
  }

  std::string_view header() const { return lines_.front(); }

 private:
  std::string here() const { return fmt::format("[plan] {}:{}: ", file_, line_); }

  void read_header() {
    ANABATIC_REQUIRE(!lines_.front().empty(),
                     "{}expected a header with the columns id, lower, upper and size, got {}",
                     here(), lines_.size() == 1 ? "an empty file" : "an empty line");
    const std::vector<std::string_view> names = split(lines_.front(), ',');
    num_columns_ = names.size();
    place_of_.fill(num_columns_);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto found = std::find(kColumns.begin(), kColumns.end(), names[i]);
      ANABATIC_REQUIRE(found != kColumns.end(),
                       "{}expected the columns id, lower, upper and size, got {}", here(),
                       shown(names[i]));
      std::size_t& place = place_of_[static_cast<std::size_t>(found - kColumns.begin())];
      ANABATIC_REQUIRE(place == num_columns_, "{}the column {} appears twice", here(), *found);
      place = i;
    }
    for (std::size_t i = 0; i < kColumns.size(); ++i)
      ANABATIC_REQUIRE(place_of_[i] < num_columns_, "{}the column {} is missing", here(),
                       kColumns[i]);
  }

  Row read_row() const {
    Row row{.line = lines_[line_ - 1]};
    const std::vector<std::string_view> fields = split(row.line, ',');
    ANABATIC_REQUIRE(fields.size() == num_columns_, "{}expected {} fields, got {}", here(),
                     num_columns_, fields.size());
    for (std::size_t i = 0; i < kColumns.size(); ++i) row.fields[i] = fields[place_of_[i]];
    row.lower = integer(row, kLower);
    row.upper = integer(row, kUpper);
    row.size = integer(row, kSize);
    ANABATIC_REQUIRE(row.size >= 0, "{}expected size >= 0, got {}", here(), row.size);
    ANABATIC_REQUIRE(row.lower <= row.upper, "{}expected lower <= upper, got {} and {}", here(),
                     row.lower, row.upper);
    return row;
  }

  std::int64_t integer(const Row& row, Column column) const {
    const std::string_view field = row.fields[column];
    std::int64_t number = 0;
    const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), number);
    ANABATIC_REQUIRE(error == std::errc{} && stop == field.data() + field.size(),
                     "{}{}: expected a 64-bit integer, got {}", here(), kColumns[column],
                     shown(field));
    return number;
  }

  std::string file_;
  std::vector<std::string_view> lines_;
  std::size_t line_ = 1, num_columns_ = 0;
  std::array<std::size_t, kColumns.size()> place_of_{};  // num_columns_: not there
};

// Times as their ranks, which change nothing about who meets whom.
std::vector<plan::LiveBytes> items_of(const std::vector<Row>& rows) {
  std::vector<std::int64_t> times;
  for (const Row& row : rows) times.insert(times.end(), {row.lower, row.upper});
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const auto rank = [&](std::int64_t time) {
    return static_cast<std::int32_t>(std::lower_bound(times.begin(), times.end(), time) -
                                     times.begin());
  };
  std::vector<plan::LiveBytes> items;
  for (const Row& row : rows) items.push_back({{rank(row.lower), rank(row.upper)}, row.size});
  return items;
}

}  // namespace

OffsetsFound find_offsets(std::string_view text, const std::filesystem::path& file,
                          std::int64_t capacity, double seconds) {
  Reader reader(text, file);
  const std::vector<Row> rows = reader.read();
  const std::vector<plan::LiveBytes> items = items_of(rows);
  const plan::Fit fit = plan::place_within(
      items, capacity, 1, {.steps = std::numeric_limits<std::int64_t>::max(), .seconds = seconds});
  if (!fit.placement) {
    const std::int64_t bound = analysis::peak_live_bytes(items);
    if (bound > capacity)
      return {.reason = fmt::format("{} are in use at once, the capacity is {}", bound, capacity)};
    if (fit.is_impossible)
      return {.reason = fmt::format("no placement of the {} buffers fits a capacity of {}",
                                    rows.size(), capacity)};
    return {.reason = fmt::format("found no placement of the {} buffers within a capacity of {} "
                                  "in {} s; there may be one, as at most {} are in use at once",
                                  rows.size(), capacity, seconds, bound)};
  }
  std::string csv = fmt::format("{},offset\n", reader.header());
  for (std::size_t i = 0; i < rows.size(); ++i)
    csv += fmt::format("{},{}\n", rows[i].line, fit.placement->offsets[i]);
  return {.csv = std::move(csv)};
}

int plan_offsets(const Invocation& invocation) {
  ANABATIC_REQUIRE(invocation.has("--capacity"), "[plan] --offsets needs --capacity N");
  const std::int64_t capacity = invocation.integer("--capacity", 0);
  const std::string file = invocation.value("--offsets");
  const auto begin = std::chrono::steady_clock::now();
  const OffsetsFound found = find_offsets(read_file(file, kMaxFileBytes), file, capacity, kSeconds);
  if (invocation.has("--verbose")) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    fmt::print(stderr, "{:.3f} s\n", seconds.count());
  }
  if (found.csv.empty()) {
    fmt::print(stderr, "error: [plan] {}: {}\n", file, found.reason);
    return 1;
  }
  print_output("{}", found.csv);
  return 0;
}

}  // namespace anabatic::cli
