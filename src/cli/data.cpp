// SPDX-License-Identifier: Apache-2.0
// `data show` and `data check`: rows to fine-tune on, as a run reads them.
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "io/tokenizer/tokenizer.h"
#include "train/rows/row_survey.h"
#include "train/tokenize.h"

namespace anabatic::cli {
namespace {

constexpr std::int64_t kShownRows = 3;
constexpr const char *kTrainedColour = "\x1b[32m", *kOtherColour = "\x1b[2m", *kPlain = "\x1b[0m";

// Line breaks would cut the line that shows a token.
std::string visible(std::string text) {
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2)
    text.replace(at, 1, "\\n");
  return text;
}

// A token that weighs anything but 1 or 0 has its weight after it; without colours one that is
// trained is in brackets.
void show_row(const train::EncodedRow& row, const train::KeptTokens& kept,
              const io::Tokenizer& tokenizer, bool has_colours) {
  const std::size_t count = kept.end - kept.begin;
  print_output("{}: {}, {} tokens{}\n  ", row.place, io::describe(row.kind), row.ids.size(),
               count < row.ids.size() ? fmt::format(", of which {} are kept", count) : "");
  for (std::size_t i = kept.begin; i < kept.end; ++i) {
    const std::string text = visible(tokenizer.decode(std::span(&row.ids[i], 1), false));
    const float weight = row.weights[i];
    const std::string number =
        weight == 0 || weight == 1 ? std::string() : fmt::format("*{}", weight);
    if (has_colours)
      print_output("{}{}{}{}", weight != 0 ? kTrainedColour : kOtherColour, text, number, kPlain);
    else
      write_output(weight != 0 ? fmt::format("[{}{}]", text, number) : text);
  }
  print_output("\n");
}

void show_row_as_json(const train::EncodedRow& row, const train::KeptTokens& kept,
                      const io::Tokenizer& tokenizer) {
  OrderedJson tokens = OrderedJson::array();
  for (std::size_t i = kept.begin; i < kept.end; ++i)
    tokens.push_back({{"id", row.ids[i]},
                      {"text", tokenizer.decode(std::span(&row.ids[i], 1), false)},
                      {"weight", row.weights[i]}});
  const OrderedJson json{{"place", row.place},
                         {"kind", std::string(io::describe(row.kind))},
                         {"tokens", std::move(tokens)}};
  print_output("{}\n", dump_json(json));
}

void print_numbers(const char* name, std::vector<std::int64_t> values) {
  std::ranges::sort(values);
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  std::int64_t sum = 0;
  for (const std::int64_t value : values) sum += value;
  print_output("{:<18}{:>10}{:>10}{:>10}{:>10}{:>14}\n", name, values.front(), at(0.5), at(0.9),
               values.back(), sum);
}

int print_survey(const train::RowSurvey& survey) {
  print_output("{} rows\n", survey.lengths().size());
  if (!survey.lengths().empty()) {
    print_output("{:<18}{:>10}{:>10}{:>10}{:>10}{:>14}\n", "", "least", "median", "9 of 10", "most",
                 "sum");
    print_numbers("tokens of a row", survey.lengths());
    print_numbers("trained of a row", survey.trained());
  }
  for (const train::Finding& finding : survey.findings()) {
    print_output("{} {}{}\n", finding.count, finding.what, finding.count > 0 ? ":" : "");
    for (const std::string& place : finding.first) print_output("  {}\n", place);
  }
  return survey.is_good() ? 0 : 1;
}

// Rows are cut where a key of their length is given: those of a run are shown whole otherwise.
std::optional<train::RowLimit> limit_of(const Invocation& invocation,
                                        const train::RunConfig& config) {
  for (const char* key : {"data.max_length", "data.truncation", "data.sequence_length"})
    if (invocation.overrides.contains(key)) return train::row_limit_of(config);
  return std::nullopt;
}

int run_data(const Invocation& invocation) {
  const std::string action = invocation.positionals.at(0);
  ANABATIC_REQUIRE(action == "show" || action == "check", "[data] expected show or check, got '{}'",
                   action);
  const std::vector<std::filesystem::path> paths(invocation.positionals.begin() + 1,
                                                 invocation.positionals.end());
  ANABATIC_REQUIRE(!paths.empty(), "[data] {}: expected at least one file, got none", action);
  train::RunConfig config = train::load_run_config("", invocation.overrides);
  config.train.objective = "sft";
  if (invocation.has("--template")) config.data.chat_template = invocation.value("--template");
  ANABATIC_REQUIRE(!config.model.path.empty(),
                   "[data] expected --model.path DIR, which holds tokenizer.json");
  const io::Tokenizer tokenizer =
      io::Tokenizer::load(train::tokenizer_folder_or_file(config.model.path));
  const io::SpecialTokens special = train::special_tokens_of(config, &tokenizer);
  train::log_warnings(special);
  const train::RowEncoder encoder(config, tokenizer, special);
  const std::vector<io::DataFile> files = train::text_files(paths, config, "FILE");
  const std::optional<train::RowLimit> limit = limit_of(invocation, config);
  train::RowSurvey survey(config, tokenizer, special, encoder, limit);
  const std::int64_t most = invocation.integer("--rows", kShownRows);
  const bool has_colours = ::isatty(STDOUT_FILENO) == 1;
  std::int64_t num_shown = 0;
  train::visit_rows(
      files, encoder,
      [&](const train::EncodedRow& row) {
        if (action == "check") {
          survey.add(row);
          return true;
        }
        if (num_shown++ >= most) return false;
        if (invocation.has("--json"))
          show_row_as_json(row, train::kept_of(row, limit), tokenizer);
        else
          show_row(row, train::kept_of(row, limit), tokenizer, has_colours);
        return true;
      },
      [&](const std::string& problem) {
        if (action == "show") throw InvalidArgument("[data] " + problem);
        survey.add_bad_row(problem);
      });
  return action == "check" ? print_survey(survey) : 0;
}

}  // namespace

const Verb& data_verb() {
  static const Verb verb{
      "data",
      "show rows to fine-tune on with the weight of each token, or check all of them",
      "ACTION...",
      {{.name = "--rows", .help = "rows that `show` prints (default: 3)", .value = "N"},
       {.name = "--template",
        .help = "the chat template, in place of the model's own",
        .value = "FILE"},
       {.name = "--json", .help = "`show` prints a JSON object a row", .is_flag = true}},
      true,
      run_data};
  return verb;
}

}  // namespace anabatic::cli
