// SPDX-License-Identifier: Apache-2.0
#include "train/rows/row_survey.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "io/data/json_values.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kMostProblems = 10;

std::unique_ptr<io::RecordReader> open_records(const io::DataFile& file) {
  const std::int64_t most = io::TokenizeOptions().max_line_bytes;
  if (file.format == io::DataFormat::kJsonLines)
    return std::make_unique<io::LineReader>(file.path, most);
  ANABATIC_REQUIRE(file.format == io::DataFormat::kJson, "[data] {}: expected rows of JSON, got {}",
                   file.path.string(), io::describe(file));
  return std::make_unique<io::JsonValueReader>(file.path, most);
}

// Whether `id` is there twice in a row from place `at` on.
bool is_doubled(const std::vector<std::int32_t>& ids, std::size_t at,
                const std::optional<std::int32_t>& id) {
  return id && at + 1 < ids.size() && ids[at] == *id && ids[at + 1] == *id;
}

}  // namespace

void visit_rows(const std::vector<io::DataFile>& files, const RowEncoder& encoder,
                const std::function<bool(const EncodedRow&)>& visit,
                const std::function<void(const std::string&)>& refuse) {
  for (const io::DataFile& file : files) {
    const std::unique_ptr<io::RecordReader> records = open_records(file);
    std::optional<std::pair<io::RowKind, std::int64_t>> first;
    std::string_view record;
    while (records->next(record)) {
      if (record.find_first_not_of(" \t\r\n") == std::string_view::npos) continue;
      EncodedRow row{.place = fmt::format("{}:{}", file.path.string(), records->line_number())};
      try {
        OrderedJson json = io::parse_row(record);
        row.kind = io::kind_of_row(json);
        if (!first) first.emplace(row.kind, records->line_number());
        ANABATIC_REQUIRE(row.kind == first->first,
                         "expected a row of {}, the kind that line {} has, got {}",
                         io::describe(first->first), first->second, io::describe(row.kind));
        encoder.encode(std::move(json), row.kind, row.ids, row.weights);
      } catch (const InternalError&) {
        throw;
      } catch (const Error& error) {
        refuse(fmt::format("{}: {}", row.place, error.what()));
        continue;
      }
      if (!visit(row)) return;
    }
  }
}

void RowSurvey::add(const EncodedRow& row, const io::SpecialTokens& special) {
  // The first token is no label.
  const auto begin = row.weights.begin() + (row.weights.empty() ? 0 : 1);
  const std::int64_t count = row.weights.end() - begin - std::count(begin, row.weights.end(), 0.0f);
  lengths.push_back(std::ssize(row.ids));
  trained.push_back(count);
  num_untrained += count == 0 ? 1 : 0;
  num_doubled_bos += is_doubled(row.ids, 0, special.bos) ? 1 : 0;
  num_doubled_eos += row.ids.size() > 1 && is_doubled(row.ids, row.ids.size() - 2, special.eos);
}

void RowSurvey::add_problem(const std::string& problem) {
  if (num_problems++ < kMostProblems) problems.push_back(problem);
}

}  // namespace anabatic::train
