// SPDX-License-Identifier: Apache-2.0
// The public API as a host sees it: what an engine answers after training, what it tells, and that
// it takes nothing of the process.
#include "anabatic/engine.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "anabatic/error.h"
#include "base/text.h"
#include "support/test_config.h"
#include "support/tiny_run.h"

namespace anabatic {
namespace {

namespace fs = std::filesystem;
using testing::checkpoint_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using train::RunConfig;

// Characters as tokens, as many as the tiny model has.
std::string character_tokenizer() {
  std::string vocabulary = R"("é": 0, "ü": 1)";
  for (int id = 2; id < 97; ++id) {
    const char character = static_cast<char>(' ' + id - 2);
    vocabulary += fmt::format(", \"{}{}\": {}", character == '"' || character == '\\' ? "\\" : "",
                              character, id);
  }
  return R"({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "vocab": {)" +
         vocabulary + R"(}, "merges": []}})";
}

RunConfig run_in(const TemporaryDirectory& folder, const char* precision = "fp32",
                 const char* extra = "\"eos_token_id\": null") {
  RunConfig run = testing::tiny_run(folder.path(), extra);
  std::ofstream(fs::path(run.model.path) / "tokenizer.json") << character_tokenizer();
  run.data.validation = {testing::write_tiny_tokens(folder.path(), "validation", 12, 8)};
  run.train.precision = precision;
  run.train.save_dtype = "fp32";
  run.generate.max_new_tokens = 24;
  return run;
}

// The run as a host would give it.
std::string yaml_of(const TemporaryDirectory& folder, const RunConfig& run) {
  const fs::path file = folder.path() / "run.yaml";
  write_file_atomically(file, to_yaml(run));
  return file;
}

// Notes the events of a run, and ends it after a step.
class Notes : public RunListener {
 public:
  explicit Notes(std::int64_t last = -1) : last_(last) {}
  void on_message(Severity, const std::string& text) override { text_ += text + "\n"; }
  void on_plan(const PlanSummary& plan) override { plans_.push_back(plan); }
  void on_step(const StepMetrics& metrics) override {
    steps_.push_back(metrics.step);
    struct sigaction action {};
    ::sigaction(SIGINT, nullptr, &action);
    catches_signals_ |= action.sa_handler != SIG_DFL;
    ::sigaction(SIGTERM, nullptr, &action);
    catches_signals_ |= action.sa_handler != SIG_DFL;
  }
  void on_validation(std::int64_t step, const EvaluationSummary&) override {
    validations_.push_back(step);
  }
  void on_checkpoint(std::int64_t step, const std::string& directory) override {
    EXPECT_TRUE(fs::exists(fs::path(directory) / "config.json"));
    checkpoints_.push_back(step);
  }
  bool stop_requested() override { return !steps_.empty() && steps_.back() == last_; }

  std::string text_;
  std::vector<PlanSummary> plans_;
  std::vector<std::int64_t> steps_, validations_, checkpoints_;
  bool catches_signals_ = false;
  std::int64_t last_;  // step of the run; -1: it is not ended
};

TEST(Engine, EvaluatesAndGeneratesWhatItTrained) {
  for (const char* precision : {"fp32", "bf16"}) {
    const TemporaryDirectory folder;
    const std::string yaml = yaml_of(folder, run_in(folder, precision));
    Engine engine({}, yaml);
    const std::string before = engine.generate("ab");
    const EvaluationSummary untrained = engine.evaluate();
    EXPECT_EQ(engine.generate("ab"), before);
    const TrainSummary summary = engine.train();
    ASSERT_TRUE(summary.before && summary.after);
    EXPECT_EQ(untrained.loss, summary.before->loss);
    EXPECT_EQ(engine.evaluate().loss, summary.after->loss);
    EXPECT_LT(summary.after->loss, summary.before->loss);
    const std::string after = engine.generate("ab");
    EXPECT_NE(after, before) << precision;
    EXPECT_EQ(engine.evaluate().loss, summary.after->loss);
    EXPECT_EQ(engine.generate("ab"), after);
    EXPECT_NE(engine.generate("a prompt of another length, beyond one chunk of rows"), after);

    Engine saved({{"model.path", {summary.checkpoint}}, {"model.init", {"pretrained"}}}, yaml);
    EXPECT_EQ(saved.evaluate().loss, summary.after->loss);
    EXPECT_EQ(saved.generate("ab"), after) << precision;
  }
}

TEST(Engine, EvaluatesAndGeneratesWhatAnInterruptedRunHasTrained) {
  const TemporaryDirectory folder;
  const std::string yaml = yaml_of(folder, run_in(folder));
  Notes notes(3);
  Engine engine({{"train.steps", {"1000"}}}, yaml, &notes);
  const TrainSummary summary = engine.train();
  EXPECT_TRUE(summary.interrupted);
  EXPECT_EQ(summary.step, 3);
  Engine saved({{"model.path", {summary.checkpoint}}, {"model.init", {"pretrained"}}}, yaml);
  EXPECT_EQ(engine.evaluate().loss, saved.evaluate().loss);
  EXPECT_EQ(engine.generate("ab"), saved.generate("ab"));
}

// Each rank has half of the experts while it trains.
TEST(Engine, EvaluatesAndGeneratesWhatRanksTrained) {
  const TemporaryDirectory folder;
  const std::string yaml = yaml_of(folder, run_in(folder, "bf16"));
  Engine engine({{"parallel.local_ranks", {"2"}}, {"parallel.expert", {"2"}}}, yaml);
  const std::string before = engine.generate("ab");
  const TrainSummary summary = engine.train();
  Engine saved({{"model.path", {summary.checkpoint}}, {"model.init", {"pretrained"}}}, yaml);
  ASSERT_TRUE(summary.before && summary.after);
  EXPECT_LT(summary.after->loss, summary.before->loss);
  EXPECT_EQ(engine.evaluate().loss, saved.evaluate().loss);
  EXPECT_EQ(engine.generate("ab"), saved.generate("ab"));
  EXPECT_NE(engine.generate("ab"), before);
}

TEST(Engine, EvaluatesAndGeneratesWithStatesOnDisk) {
  const TemporaryDirectory folder;
  RunConfig run = run_in(folder, "bf16");
  run.memory.optimizer_state = run.memory.masters = run.memory.parameters = "disk";
  const std::string yaml = yaml_of(folder, run);
  Engine engine({}, yaml);
  const TrainSummary summary = engine.train();
  EXPECT_EQ(engine.evaluate().loss, summary.after->loss);
  Engine saved({{"model.path", {summary.checkpoint}}, {"model.init", {"pretrained"}}}, yaml);
  EXPECT_EQ(engine.generate("ab"), saved.generate("ab"));
}

TEST(Engine, TrainsOnFromWhereItsLastRunEnded) {
  const TemporaryDirectory folder;
  const std::string yaml = yaml_of(folder, run_in(folder));
  Notes notes(3);
  Engine engine({}, yaml, &notes);
  EXPECT_TRUE(engine.train().interrupted);
  notes.last_ = -1;
  const EvaluationSummary middle = engine.evaluate();
  const TrainSummary summary = engine.train();
  EXPECT_FALSE(summary.interrupted);
  EXPECT_THAT(notes.text_, HasSubstr("resuming from"));
  EXPECT_THAT(notes.steps_, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_NE(engine.evaluate().loss, middle.loss);
  EXPECT_EQ(engine.evaluate().loss, summary.after->loss);
}

TEST(Engine, StepsAreThoseOfTrain) {
  const TemporaryDirectory folder, other;
  RunConfig run = run_in(folder);
  run.train.save_every = run.train.validate_every = 3;
  const std::string whole = checkpoint_bytes(Engine({}, yaml_of(folder, run)).train().checkpoint);
  RunConfig stepped = run_in(other);
  stepped.train.save_every = stepped.train.validate_every = 3;
  Notes notes;
  Engine engine({}, yaml_of(other, stepped), &notes);
  EXPECT_THROW((void)engine.summary(), InvalidArgument);
  EXPECT_THROW(engine.save(), InvalidArgument);
  EXPECT_THROW((void)engine.plan(), InvalidArgument);
  engine.start();
  EXPECT_GT(engine.plan().peak_memory_bytes, 0);
  EXPECT_THAT(engine.graph(), HasSubstr("layers.0"));
  for (std::int64_t step = 1; step <= 4; ++step) EXPECT_EQ(engine.step()->step, step);
  const EvaluationSummary between = engine.evaluate();
  const std::string text = engine.generate("ab");
  EXPECT_EQ(fs::path(engine.save()).filename(), "step-00000004");
  Engine saved({{"model.path", {engine.summary().checkpoint}}, {"model.init", {"pretrained"}}},
               yaml_of(other, stepped));
  EXPECT_EQ(saved.evaluate().loss, between.loss);
  EXPECT_EQ(saved.generate("ab"), text);
  EXPECT_FALSE(engine.train().interrupted);
  EXPECT_FALSE(engine.step());
  EXPECT_THAT(notes.steps_, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(notes.validations_, ElementsAre(0, 3, 6, 8));
  EXPECT_THAT(notes.checkpoints_, ElementsAre(3, 4, 6, 8));
  EXPECT_TRUE(checkpoint_bytes(engine.summary().checkpoint) == whole);
}

TEST(Engine, TakesSamplesOfTheHostInPlaceOfAStepsOwn) {
  const TemporaryDirectory folder;
  const RunConfig run = run_in(folder);
  Engine engine({}, yaml_of(folder, run));
  const std::vector<Sequence> batch(1, {.tokens = {5, 6, 7, 8, 9}});
  EXPECT_EQ(engine.step(batch)->tokens, 4);
  EXPECT_EQ(engine.step()->step, 2);
  const std::vector<Sequence> wrong(1, {.tokens = {5, 97}});
  EXPECT_THROW(engine.step(wrong), InvalidArgument);
  EXPECT_EQ(engine.step(batch)->step, 3);  // nothing was lost
  Engine ranks({{"parallel.local_ranks", {"2"}}, {"train.output", {folder.path() / "ranks"}}},
               yaml_of(folder, run));
  EXPECT_THROW(ranks.step(batch), Unsupported);
  EXPECT_THROW(ranks.states(), Unsupported);
  EXPECT_EQ(ranks.step()->step, 1);
}

TEST(Engine, HasTheStatesOfItsRun) {
  const TemporaryDirectory folder;
  Engine engine({}, yaml_of(folder, run_in(folder)));
  EXPECT_THROW(engine.states(), InvalidArgument);
  engine.step();
  const std::vector<StateInfo> states = engine.states();
  const auto norm = std::ranges::find(states, "norm.weight", &StateInfo::name);
  ASSERT_NE(norm, states.end());
  const std::span<const float> view = engine.view(norm->name);
  ASSERT_EQ(view.size(), static_cast<std::size_t>(norm->shape[0]));
  const std::span<const float> matrix = engine.view("layers.0.experts.gate.weight");
  EXPECT_EQ(matrix.empty(), testing::has_pass("panel_states"));  // which stores it in panels
  std::vector<float> values(view.size());
  engine.read(norm->name, 0, values);
  EXPECT_TRUE(std::ranges::equal(values, view));
  engine.step();
  EXPECT_FALSE(std::ranges::equal(values, view));
  std::vector<float> weights(static_cast<std::size_t>(
      std::ranges::find(states, "layers.0.experts.gate.weight", &StateInfo::name)->shape[2]));
  engine.write("layers.0.experts.gate.weight", 0, weights);
  std::ranges::fill(weights, 1.0F);
  engine.read("layers.0.experts.gate.weight", 0, weights);
  EXPECT_THAT(weights, ::testing::Each(0.0F));
  const double before = engine.evaluate().loss;
  engine.write(norm->name, 0, std::vector<float>(view.size()));  // no logit differs then
  EXPECT_NE(engine.evaluate().loss, before);
  engine.train();
  EXPECT_EQ(engine.view(norm->name).data(), view.data());
}

TEST(Engine, HasNoStatesAfterAStepThatFailed) {
  const TemporaryDirectory folder;
  RunConfig run = run_in(folder);
  run.optimizer.learning_rate = 1e6;
  run.optimizer.warmup_steps = 0;
  run.optimizer.clip_grad_norm = 0;
  Engine engine({}, yaml_of(folder, run));
  EXPECT_THROW(engine.train(), Error);
  EXPECT_THROW(engine.states(), InvalidArgument);
  EXPECT_THROW((void)engine.summary(), InvalidArgument);
  EXPECT_NO_THROW(engine.evaluate());  // of model.path
}

TEST(Engine, UsesTheModelsPathWhileNothingIsTrained) {
  const TemporaryDirectory folder;
  RunConfig run = run_in(folder);
  run.model.init = "pretrained";  // of a directory without weights
  Engine engine({}, yaml_of(folder, run));
  EXPECT_THROW(engine.train(), ResourceError);
  for (int i = 0; i < 2; ++i) {  // what could not be loaded is not kept
    EXPECT_THROW(engine.evaluate(), ResourceError);
    EXPECT_THROW(engine.generate("ab"), ResourceError);
  }
}

TEST(Engine, TellsItsListenerAndPrintsNothing) {
  const TemporaryDirectory folder;
  RunConfig run = run_in(folder, "fp32", "");
  run.train.validate_every = run.train.save_every = 3;
  // It is tokenised, and a message reports that.
  run.data.train.push_back(folder.path() / "text.txt");
  std::ofstream(run.data.train.back()) << "Some text of a few words.";
  const std::string yaml = yaml_of(folder, run);
  Notes notes;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const auto work = [&] {
    Engine engine({}, yaml, &notes);
    engine.train();
    engine.evaluate();
    engine.generate("ab");
    Engine silent({{"train.output", {folder.path() / "silent"}}}, yaml);
    silent.train();
    silent.evaluate();
  };
  EXPECT_NO_THROW(work());
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_FALSE(notes.catches_signals_);
  EXPECT_THAT(notes.text_, HasSubstr("text.txt"));
  EXPECT_THAT(notes.steps_, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(notes.validations_, ElementsAre(0, 3, 6, 8));
  EXPECT_THAT(notes.checkpoints_, ElementsAre(3, 6, 8));
  ASSERT_EQ(notes.plans_.size(), 1u);
  EXPECT_GT(notes.plans_[0].peak_memory_bytes, 0);
  EXPECT_THAT(read_file(notes.plans_[0].file), HasSubstr(notes.plans_[0].text));
}

// One of two runs is ended by its own listener; neither hears of the other, and each has the bits
// that it has alone.
TEST(Engine, WorksBesideAnotherInTurnAndAtOnce) {
  const TemporaryDirectory alone_folder, folder;
  RunConfig run = run_in(alone_folder);
  const std::string want =
      checkpoint_bytes(Engine({}, yaml_of(alone_folder, run)).train().checkpoint);
  const std::string yaml = yaml_of(folder, run_in(folder));
  for (const bool at_once : {false, true}) {
    const auto settings = [&](const char* name) {
      const std::string output = folder.path() / fmt::format("{}{}", name, at_once);
      return Settings{{"train.output", {output}}, {"device.threads", {"1"}}};
    };
    Notes stopped(2), whole;
    Engine first(settings("first"), yaml, &stopped), second(settings("second"), yaml, &whole);
    TrainSummary first_summary, second_summary;
    std::string first_text, second_text;
    const auto train = [](Engine& engine, TrainSummary& summary, std::string& text) {
      summary = engine.train();
      text = engine.generate("ab");
    };
    std::thread thread([&] { train(first, first_summary, first_text); });
    if (!at_once) thread.join();
    train(second, second_summary, second_text);
    if (at_once) thread.join();
    EXPECT_TRUE(first_summary.interrupted);
    EXPECT_EQ(first_summary.step, 2);
    EXPECT_FALSE(second_summary.interrupted);
    EXPECT_TRUE(checkpoint_bytes(second_summary.checkpoint) == want) << at_once;
    EXPECT_THAT(stopped.steps_, ElementsAre(1, 2));
    EXPECT_THAT(whole.steps_, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
    EXPECT_NE(first_text, second_text);
    EXPECT_EQ(first.generate("ab"), first_text);
  }
}

}  // namespace
}  // namespace anabatic
