// SPDX-License-Identifier: Apache-2.0
#include "train/rows/row_survey.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "base/error.h"
#include "io/data/json_values.h"

namespace anabatic::train {
namespace {

constexpr std::int64_t kMostPlaces = 10;

std::unique_ptr<io::RecordReader> open_records(const io::DataFile& file) {
  const std::int64_t most = io::TokenizeOptions().max_line_bytes;
  if (file.format == io::DataFormat::kJsonLines)
    return std::make_unique<io::LineReader>(file.path, most);
  ANABATIC_REQUIRE(file.format == io::DataFormat::kJson, "[data] {}: expected rows of JSON, got {}",
                   file.path.string(), io::describe(file));
  return std::make_unique<io::JsonValueReader>(file.path, most);
}

void note(Finding& finding, const std::string& place, const std::string& text) {
  if (finding.count++ < kMostPlaces)
    finding.first.push_back(place + (text.empty() ? "" : ": " + text));
}

// One of the two rows of a pair.
EncodedRow completion_of(const EncodedRow& pair, std::size_t number, std::size_t begin,
                         std::size_t end) {
  const auto part = [&](const auto& values) {
    return std::vector(values.begin() + static_cast<std::ptrdiff_t>(begin),
                       values.begin() + static_cast<std::ptrdiff_t>(end));
  };
  return {.place = fmt::format("{} {}", pair.place, number == 0 ? "chosen" : "rejected"),
          .kind = pair.kind,
          .ids = part(pair.ids),
          .weights = part(pair.weights)};
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
      std::vector<std::size_t> ends;
      EncodedRow row{.place = fmt::format("{}:{}", file.path.string(), records->line_number())};
      try {
        OrderedJson json = io::parse_row(record);
        row.kind = io::kind_of_row(json);
        if (!first) first.emplace(row.kind, records->line_number());
        ANABATIC_REQUIRE(row.kind == first->first,
                         "expected a row of {}, the kind that line {} has, got {}",
                         io::describe(first->first), first->second, io::describe(row.kind));
        encoder.encode(std::move(json), row.kind, row.ids, row.weights, ends, &row.notes);
      } catch (const InternalError&) {
        throw;
      } catch (const io::WrongForAllRows&) {
        throw;
      } catch (const Error& error) {
        refuse(fmt::format("{}: {}", row.place, error.what()));
        continue;
      }
      std::size_t begin = 0;
      for (std::size_t i = 0; i < ends.size(); begin = ends[i++])
        if (!visit(ends.size() == 1 ? std::move(row) : completion_of(row, i, begin, ends[i])))
          return;
    }
  }
}

RowLimit row_limit_of(const RunConfig& run) {
  const bool is_auto = run.data.max_length == RunConfig::Data::kWholeSample;
  return {.tokens = is_auto ? run.data.sequence_length : run.data.max_length,
          .of_completion = is_auto ? run.data.sequence_length / 2 : run.data.max_length,
          .truncation = io::truncation_from_string(run.data.truncation).value()};
}

KeptTokens kept_of(const EncodedRow& row, const std::optional<RowLimit>& limit) {
  const std::size_t length = row.ids.size();
  if (!limit) return {0, length};
  const auto most = static_cast<std::size_t>(
      row.kind == io::RowKind::kPreference ? limit->of_completion : limit->tokens);
  if (length <= most) return {0, length};
  if (limit->truncation == io::Truncation::kKeepStart) return {0, most};
  if (limit->truncation == io::Truncation::kKeepEnd) return {length - most, length};
  return {};
}

RowSurvey::RowSurvey(const RunConfig& run, const io::Tokenizer& tokenizer,
                     const io::SpecialTokens& special, const RowEncoder& encoder,
                     std::optional<RowLimit> limit)
    : tokenizer_(tokenizer),
      special_(special),
      encoder_(encoder),
      limit_(limit),
      has_turns_(run.data.loss_on != "all"),
      bad_{.what = "bad rows"},
      untrained_{.what = "rows without a trained token"},
      unstopped_{.what = "turns whose trained tokens end without a stop token",
                 .is_error = run.data.require_stop_token},
      doubled_bos_{.what = "rows that begin with BOS twice"},
      doubled_eos_{.what = "rows with EOS twice in a row"},
      begun_by_space_{.what = "turns that train white space which their generation prompt lacks",
                      .is_error = false},
      suppressed_{.what = "rows with special tokens in content, which were read as text",
                  .is_error = false},
      left_out_{.what = "messages that the template leaves out", .is_error = false},
      long_{
          .what = fmt::format("rows that are too long (data.truncation: {})", run.data.truncation),
          .is_error = run.data.truncation == "error"} {}

void RowSurvey::add(const EncodedRow& row) {
  const KeptTokens kept = kept_of(row, limit_);
  const std::size_t length = kept.end - kept.begin;
  if (length < row.ids.size()) note(long_, row.place, fmt::format("{} tokens", row.ids.size()));
  if (length > 0 || row.ids.empty()) {
    const std::span weights = std::span(row.weights).subspan(kept.begin, length);
    // The first token is no label.
    const std::span labels = weights.subspan(weights.empty() ? 0 : 1);
    const std::int64_t count = std::ssize(labels) - std::ranges::count(labels, 0.0f);
    lengths_.push_back(std::ssize(weights));
    trained_.push_back(count);
    if (count == 0) note(untrained_, row.place, "");
  }
  find_doubled(row);
  find_ends(row);
  for (const std::size_t i : row.notes.begun_by_space)
    note(begun_by_space_, row.place, fmt::format("messages[{}]", i));
  for (const auto& [i, role] : row.notes.left_out)
    note(left_out_, row.place, fmt::format("messages[{}], role {}", i, role));
  if (!row.notes.suppressed.empty()) {
    std::string texts;
    for (const std::int32_t id : row.notes.suppressed)
      texts += (texts.empty() ? "" : " ") + tokenizer_.id_to_token(id);
    note(suppressed_, row.place, texts);
  }
}

void RowSurvey::find_doubled(const EncodedRow& row) {
  const auto lines_of = [&](std::int32_t id) {
    const std::string lines = row.notes.is_chat ? encoder_.template_lines_of(id) : "";
    return fmt::format("{} twice{}", tokenizer_.id_to_token(id),
                       lines.empty() ? "" : ", written by " + lines);
  };
  const auto& ids = row.ids;
  if (special_.bos && ids.size() > 1 && ids[0] == *special_.bos && ids[1] == *special_.bos)
    note(doubled_bos_, row.place, lines_of(*special_.bos));
  if (!special_.eos) return;
  // Where they are one token, EOS of a turn and BOS of the next are no doubled EOS.
  const std::size_t first =
      special_.bos == special_.eos ? std::max<std::size_t>(ids.size(), 2) - 2 : 0;
  for (std::size_t i = first; i + 1 < ids.size(); ++i)
    if (ids[i] == *special_.eos && ids[i + 1] == *special_.eos)
      return note(doubled_eos_, row.place, lines_of(*special_.eos));
}

// Tokens that are trained without a break are a turn, whose last one is special.
void RowSurvey::find_ends(const EncodedRow& row) {
  for (const std::size_t i : row.notes.unstopped)
    note(unstopped_, row.place, fmt::format("messages[{}]", i));
  if (!has_turns_ || !row.notes.unstopped.empty() || row.notes.has_generation_blocks) return;
  if (!row.notes.is_chat && special_.document.suffix.empty()) return;
  for (std::size_t i = 0; i < row.ids.size(); ++i) {
    const bool ends = row.weights[i] != 0 && (i + 1 == row.ids.size() || row.weights[i + 1] == 0);
    if (ends && !tokenizer_.is_special(row.ids[i]) && row.ids[i] != special_.eos)
      note(unstopped_, row.place,
           fmt::format("token {}, '{}'", i, tokenizer_.decode(std::span(&row.ids[i], 1), false)));
  }
}

void RowSurvey::add_bad_row(const std::string& problem) { note(bad_, problem, ""); }

std::vector<Finding> RowSurvey::findings() const {
  std::vector<Finding> found{untrained_,      unstopped_,  doubled_bos_, doubled_eos_,
                             begun_by_space_, suppressed_, left_out_,    bad_};
  if (limit_) found.push_back(long_);
  return found;
}

bool RowSurvey::is_good() const {
  return !lengths_.empty() && std::ranges::none_of(findings(), [](const Finding& finding) {
    return finding.is_error && finding.count > 0;
  });
}

}  // namespace anabatic::train
