// SPDX-License-Identifier: Apache-2.0
// Task files, the scores of their rows, and the metrics of those.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <ostream>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/philox.h"
#include "base/text.h"
#include "support/tiny_run.h"
#include "train/tasks/run_tasks.h"
#include "train/tasks/sequence_scorer.h"
#include "train/tasks/task_file.h"
#include "train/tasks/task_result.h"
#include "unit/model/model_files.h"

namespace anabatic::train {
namespace {

using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string problems_of_text(std::string_view text) {
  try {
    parse_task("t.jsonl", text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(TaskFile, ReadsEveryKindOfRow) {
  const Task choices =
      parse_task("a/b.jsonl", R"({"context": "c", "choices": ["x", "y"], "answer": 1}

{"context": "", "choices": ["z"], "answer": 0}
)");
  EXPECT_EQ(choices.name, "b");
  EXPECT_EQ(choices.kind, TaskKind::kChoices);
  ASSERT_EQ(choices.rows.size(), 2u);
  EXPECT_THAT(choices.rows[0].choices, ElementsAre("x", "y"));
  EXPECT_EQ(choices.rows[0].answer, 1);
  EXPECT_EQ(choices.rows[1].line, 3);

  EXPECT_EQ(parse_task("t", R"({"context": "c", "target": "t"})").kind, TaskKind::kTarget);
  const Task generate =
      parse_task("t", R"({"prompt": "p", "answer": "4", "stop": ["\n"], "regex": "[0-9]+"})");
  EXPECT_EQ(generate.kind, TaskKind::kGenerate);
  EXPECT_THAT(generate.rows[0].stop, ElementsAre("\n"));
  EXPECT_EQ(parse_task("t", "{\"text\": \"a\"}\r\n").kind, TaskKind::kText);
}

TEST(TaskFile, PutsTheShotsOfItsHeaderBeforeEachRow) {
  const Task task = parse_task(
      "t.jsonl",
      R"({"name": "n", "delimiter": "=", "shot_delimiter": ";", "shots": [{"context": "1+1", "choices": ["3", "2"], "answer": 1}]}
{"context": "1+2", "choices": ["3", "2"], "answer": 0})");
  EXPECT_EQ(task.name, "n");
  ASSERT_EQ(task.rows.size(), 1u);
  EXPECT_EQ(task.context_of(task.rows[0]), "1+1=2;1+2");
}

TEST(TaskFile, NamesFileLineWhatItExpectedAndWhatItFound) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"{\"text\": \"a\"}\n{\"text\": ", "t.jsonl:2: expected a JSON object, found"},
      {"[1]", "t.jsonl:1: expected a JSON object, found [1]"},
      {"", "t.jsonl:1: expected at least one row, found none"},
      {"{}", "found no fields"},
      {R"({"context": "c", "choices": ["a", "b"], "answer": 2})",
       "t.jsonl:1: expected answer as an index from 0 to 1, found 2"},
      {R"({"context": "c", "choices": ["a", "b"], "answer": -1})", "found -1"},
      {R"({"context": "c", "choices": ["a", "b"], "answer": "a"})", "found \"a\""},
      {R"({"context": "c", "choices": ["a", "b"]})",
       "expected answer, found a row of the kind choices without it"},
      {R"({"context": "c", "choices": [], "answer": 0})", "expected choices as a list of texts"},
      {R"({"context": "c", "choices": ["a", ""], "answer": 0})", "that are not empty, found \"\""},
      {R"({"context": 1, "choices": ["a"], "answer": 0})", "expected context as a text, found 1"},
      {R"({"context": "c", "target": ""})", "expected target with a text"},
      {R"({"context": "c", "target": "t", "id": 3})",
       "expected no fields but context, target, found id"},
      {"{\"text\": \"a\"}\n{\"context\": \"c\", \"target\": \"t\"}",
       "t.jsonl:2: expected a row of the kind text, as in line 1, found one of the kind target"},
      {R"({"prompt": "p", "answer": "a", "stop": "x"})", "expected stop as a list"},
      {R"({"prompt": "p", "answer": "a", "regex": "("})", "expected regex as a regular expression"},
      {"{\"name\": \"n\", \"shot\": []}\n{\"text\": \"a\"}", "found shot"},
      {"{\"chat\": 1}\n{\"text\": \"a\"}", "expected chat: true or false, found 1"},
      {"{\"chat\": true}\n\n{\"text\": \"a\"}",
       "t.jsonl:3: expected rows with context or prompt after chat: true, found a row with text"},
      {"{\"name\": 3}\n{\"text\": \"a\"}", "expected name as a text, found 3"},
      {"{\"shots\": [{\"text\": \"a\"}]}\n{\"text\": \"a\"}", "expected shots with an answer"},
      {"{\"text\": \"a\"}\n{\"name\": \"n\"}", "t.jsonl:2: expected a row with context"},
  };
  for (const auto& c : cases) EXPECT_THAT(problems_of_text(c.text), HasSubstr(c.message)) << c.text;
}

TEST(TaskFile, ListsTheFirstTenProblemsAndTheirNumber) {
  std::string text;
  for (int i = 0; i < 13; ++i) text += "[]\n";
  EXPECT_THAT(problems_of_text(text),
              AllOf(HasSubstr("13 problems"), HasSubstr("t.jsonl:10:"),
                    Not(HasSubstr("t.jsonl:11:")), HasSubstr("and 3 more")));
}

TEST(TaskFile, TellsAChatFromText) {
  const char* row = R"({"context": "c", "target": "t"})";
  const auto read = [&](const char* header) { return parse_task("t", std::string(header) + row); };
  const Task chat = read("{\"chat\": true}\n"), text = read("{\"chat\": false}\n");
  EXPECT_TRUE(chat.is_chat);
  EXPECT_EQ(chat.delimiter_of_choices(), "");
  EXPECT_FALSE(text.is_chat);
  EXPECT_EQ(text.delimiter_of_choices(), " ");
  EXPECT_NE(chat.id_of(chat.rows[0]), text.id_of(text.rows[0]));
  EXPECT_EQ(read("").id_of(chat.rows[0]), text.id_of(text.rows[0]));
}

TEST(TaskFile, TellsRowsApartByAllThatDecidesTheirResult) {
  const Task task = parse_task("t", R"({"context": "c", "choices": ["a", "b"], "answer": 0}
{"context": "c", "choices": ["a", "b"], "answer": 1}
{"context": "c", "choices": ["ab"], "answer": 0}
{"context": "c", "choices": ["a", "b"], "answer": 0})");
  EXPECT_NE(task.id_of(task.rows[0]), task.id_of(task.rows[1]));
  EXPECT_NE(task.id_of(task.rows[0]), task.id_of(task.rows[2]));
  EXPECT_EQ(task.id_of(task.rows[0]), task.id_of(task.rows[3]));
}

TEST(TaskText, MovesTrailingSpaceToTheContinuation) {
  EXPECT_EQ(move_trailing_space("a b \n\xc2\xa0", " c"),
            std::pair(std::string("a b"), std::string(" \n\xc2\xa0 c")));
  EXPECT_EQ(move_trailing_space("a", "b"), std::pair(std::string("a"), std::string("b")));
  EXPECT_EQ(move_trailing_space(" ", "b"), std::pair(std::string(""), std::string(" b")));
}

TEST(TaskText, CountsAsPythonDoes) {
  EXPECT_EQ(count_words("a b"), 2);
  EXPECT_EQ(count_words(" a\n\n b "), 4);
  EXPECT_EQ(count_words("a\xe3\x80\x80z"), 2);
  EXPECT_EQ(count_characters("n\xc3\xa9\xe2\x82\xac"), 3);
  EXPECT_EQ(strip_space("\t\xe2\x80\xa8 x y\x1f"), "x y");
}

TEST(TaskText, MatchesAnAnswerAfterItsRegexAndWithoutSpace) {
  TaskRow row{.choices = {" 42 "}};
  EXPECT_TRUE(matches_answer(row, "42\n"));
  EXPECT_FALSE(matches_answer(row, "it is 42"));
  row.regex = "is (\\d+)|was (\\d+)";
  EXPECT_TRUE(matches_answer(row, "it was 42 then"));
  EXPECT_FALSE(matches_answer(row, "42"));
  row.choices = {"\xc3\xa9t\xc3\xa9"};
  row.regex = "\\w+";
  EXPECT_TRUE(matches_answer(row, ", \xc3\xa9t\xc3\xa9."));
  row.choices = {"42"};
  row.regex = "\\d+";
  EXPECT_TRUE(matches_answer(row, "it is 42, not 41"));
}

TEST(TaskText, BreaksTiesByTheFirst) {
  EXPECT_EQ(first_largest(std::vector<double>{-2, -1, -1, -3}), 1u);
}

TaskResult result_of(TaskKind kind, const std::vector<std::vector<double>>& values) {
  TaskResult result{.name = "t", .file = "t.jsonl", .kind = kind, .rows = {}};
  for (const auto& of_row : values) {
    result.rows.emplace_back();
    result.rows.back().line = static_cast<std::int64_t>(result.rows.size());
    result.rows.back().id = std::to_string(result.rows.size());
    result.rows.back().values = of_row;
  }
  return result;
}

TEST(TaskMetrics, AreMeansOrPerplexitiesWithErrorsOfABootstrap) {
  const TaskResult shares = result_of(TaskKind::kGenerate, {{1}, {0}, {1}, {1}});
  const std::vector<MetricValue> of_shares = metrics_of(shares, 0);
  ASSERT_EQ(of_shares.size(), 1u);
  EXPECT_EQ(of_shares[0].value, 0.75);
  // √(p(1 - p)/n) is 0.2165; a thousand replicas find it within a few hundredths.
  EXPECT_GT(of_shares[0].standard_error, 0.19);
  EXPECT_LT(of_shares[0].standard_error, 0.24);
  EXPECT_EQ(metrics_of(shares, 0)[0].standard_error, of_shares[0].standard_error);
  EXPECT_NE(metrics_of(shares, 1)[0].standard_error, of_shares[0].standard_error);

  const TaskResult texts = result_of(TaskKind::kText, {{-6, 2, 8}, {-4, 3, 12}});
  const std::vector<MetricValue> of_texts = metrics_of(texts, 0);
  ASSERT_EQ(of_texts.size(), 3u);
  EXPECT_EQ(of_texts[0].name, "bits_per_byte");
  EXPECT_EQ(of_texts[0].value, 0.5 / std::log(2.0));
  EXPECT_EQ(of_texts[1].value, std::exp(2.0));
  EXPECT_EQ(of_texts[2].value, std::exp(0.5));
}

TEST(TaskMetrics, DoNotDependOnTheOrderOfRows) {
  std::vector<std::vector<double>> values;
  for (std::uint64_t i = 0; i < 50; ++i) values.push_back({random_uniform(1, 2, i) * -90, 7, 31});
  const TaskResult forward = result_of(TaskKind::kText, values);
  std::reverse(values.begin(), values.end());
  const TaskResult backward = result_of(TaskKind::kText, values);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(metrics_of(forward, 5)[i].value, metrics_of(backward, 5)[i].value);
    EXPECT_EQ(metrics_of(forward, 5)[i].standard_error, metrics_of(backward, 5)[i].standard_error);
  }
}

TEST(TaskComparisons, PairRowsByTheirIds) {
  const TaskResult result = result_of(TaskKind::kTarget, {{1, -2}, {0, -3}, {1, -4}, {0, -5}});
  TaskResult other = result_of(TaskKind::kTarget, {{1, -2}, {1, -3}, {0, -4}, {1, -6}});
  std::reverse(other.rows.begin(), other.rows.end());
  const TaskComparison compared = compare(result, other, 0);
  EXPECT_THAT(compared.gained, ElementsAre(3));
  EXPECT_THAT(compared.lost, ElementsAre(2, 4));
  EXPECT_EQ(compared.drop, 25);
  EXPECT_EQ(compared.metrics[0].difference, -0.25);
  EXPECT_LE(compared.metrics[0].low, -0.25);
  EXPECT_GE(compared.metrics[0].high, -0.25);
  EXPECT_EQ(compared.metrics[1].difference, 0.25);

  other.rows[0].id = "another";
  EXPECT_THROW(compare(result, other, 0), InvalidArgument);
}

TEST(TaskComparisons, HaveNoDifferenceBetweenEqualResults) {
  const TaskResult result = result_of(TaskKind::kText, {{-6, 2, 8}, {-4, 3, 12}});
  const TaskComparison compared = compare(result, result, 0);
  EXPECT_EQ(compared.drop, 0);
  EXPECT_EQ(compared.metrics[0].low, 0);
  EXPECT_EQ(compared.metrics[0].high, 0);
}

TEST(TaskResults, ComeBackFromTheirJson) {
  const TemporaryDirectory folder;
  const TaskResult result = result_of(TaskKind::kText, {{-6.123456789012345, 2, 8}, {-4, 3, 12}});
  OrderedJson json;
  json["tasks"] = OrderedJson::array({to_json(result, 0)});
  const std::filesystem::path file = folder.path() / "r.json";
  write_file_atomically(file, dump_json(json));
  const std::vector<TaskResult> read = read_results(file);
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(compare(result, read[0], 0).drop, 0);
  EXPECT_EQ(read[0].rows[0].values, result.rows[0].values);
  for (const char* bad : {"[]", "{}", R"({"tasks": [{"name": "t"}]})",
                          R"({"tasks": [{"name": "t", "file": "f", "kind": "other"}]})"}) {
    write_file_atomically(file, bad);
    EXPECT_THROW(read_results(file), InvalidArgument) << bad;
  }
}

constexpr std::uint64_t kVocabulary = 90;  // at most that of each model

std::vector<std::int32_t> random_ids(std::uint64_t stream, std::uint64_t count) {
  std::vector<std::int32_t> ids;
  for (std::uint64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>(random_below(3, stream, i, kVocabulary)));
  return ids;
}

// Contexts of many lengths, with one to four branches.
std::vector<BranchedContext> random_contexts() {
  std::vector<BranchedContext> contexts;
  for (std::uint64_t i = 0; i < 14; ++i) {
    BranchedContext context{.prefix = random_ids(i, i * 13 % 90), .branches = {}};
    for (std::uint64_t j = 0; j <= i % 4; ++j) {
      const std::uint64_t length = 1 + (i * 5 + j * 11) % 37, stream = 100 + 10 * i + 2 * j;
      context.branches.push_back(
          {.tokens = random_ids(stream, length), .labels = random_ids(stream + 1, length)});
    }
    contexts.push_back(std::move(context));
  }
  return contexts;
}

using Scores = std::vector<std::vector<BranchScore>>;

void expect_equal(const Scores& got, const Scores& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    for (std::size_t j = 0; j < want[i].size(); ++j) {
      EXPECT_EQ(got[i][j].log_probability, want[i][j].log_probability) << i << ", " << j;
      EXPECT_EQ(got[i][j].is_greedy, want[i][j].is_greedy) << i << ", " << j;
    }
}

// A branch after its prefix in one forward without caches.
BranchScore score_alone(ModelSession& session, const BranchedContext& context,
                        const Branch& branch) {
  std::vector<std::int32_t> tokens = context.prefix, labels(context.prefix.size(), -100);
  tokens.insert(tokens.end(), branch.tokens.begin(), branch.tokens.end());
  labels.insert(labels.end(), branch.labels.begin(), branch.labels.end());
  const auto program =
      session.bind({.name = "alone",
                    .build = {.num_tokens = static_cast<std::int64_t>(tokens.size()),
                              .with_loss = false,
                              .with_log_probabilities = true}});
  if (!session.has_parameters()) session.load_parameters();
  session.refresh_derived();
  std::vector<std::int32_t> positions(tokens.size()), ends(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(ends.begin(), ends.end(), 1);
  program->set("tokens", tokens);
  program->set("labels", labels);
  program->set("positions", positions);
  program->set("key_begin", std::vector<std::int32_t>(tokens.size(), 0));
  program->set("key_end", ends);
  program->run_alone(spec::Action::kForward);
  BranchScore score;
  for (std::size_t i = context.prefix.size(); i < tokens.size(); ++i) {
    score.log_probability += program->executor->output("log_probabilities").as<const float>()[i];
    score.is_greedy &= program->executor->output("margins").as<const float>()[i] >= 0;
  }
  return score;
}

struct ScoredModel {
  std::string name, precision;
  std::function<void(const std::filesystem::path& config)> write;
};
void PrintTo(const ScoredModel& model, std::ostream* out) { *out << model.name; }

void write_other_family(const std::filesystem::path& config, const std::string& family) {
  write_file_atomically(
      config, model::small_json(family, R"("vocab_size": 97, "max_position_embeddings": 160)"));
}
const std::vector<ScoredModel>& scored_models() {
  static const std::vector<ScoredModel> list{
      {"window_fp32", "fp32", [](const auto&) {}},
      {"window_bf16", "bf16", [](const auto&) {}},
      {"latent_attention", "fp32",
       [](const auto& config) { write_other_family(config, "deepseek_v3"); }},
      {"learned_positions", "fp32", [](const auto& config) { write_other_family(config, "gpt2"); }},
      {"bias_of_head", "bf16", [](const auto& config) {
         write_file_atomically(
             config, model::small_json(
                         "ernie4_5_moe",
                         R"("vocab_size": 97, "max_position_embeddings": 160, "use_bias": true)"));
       }}};
  return list;
}

class SequenceScores : public ::testing::TestWithParam<ScoredModel> {};

TEST_P(SequenceScores, AreThoseOfEachBranchAloneWhateverTheBatch) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path(), "\"sliding_window\": 24");
  run.train.precision = GetParam().precision;
  GetParam().write(std::filesystem::path(run.model.path) / "config.json");
  const std::vector<BranchedContext> contexts = random_contexts();
  Scores want;
  {
    ModelSession session(run, false);
    for (const BranchedContext& context : contexts) {
      want.emplace_back();
      for (const Branch& branch : context.branches)
        want.back().push_back(score_alone(session, context, branch));
    }
  }
  for (const int threads : {1, 2}) {
    run.device.threads = threads;
    ModelSession session(run, false);
    for (const std::int64_t batch_tokens : {1, 200, 4096}) {
      SequenceScorer scorer(session, batch_tokens, 130);
      expect_equal(scorer.score(contexts), want);
      std::vector<BranchedContext> reversed(contexts.rbegin(), contexts.rend());
      Scores scores = scorer.score(reversed);
      std::reverse(scores.begin(), scores.end());
      expect_equal(scores, want);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SequenceScores, ::testing::ValuesIn(scored_models()),
                         [](const auto& model) { return model.param.name; });

}  // namespace
}  // namespace anabatic::train
