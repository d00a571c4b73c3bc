// SPDX-License-Identifier: Apache-2.0
// How busy experts are: what is counted, that padding is not, and what a run says of it.
#include "train/expert_balance.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "anabatic/error.h"
#include "base/json.h"
#include "base/log.h"
#include "io/data/indexed_file.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/evaluate.h"
#include "train/run_plan.h"
#include "train/trainer.h"
#include "train/training_step.h"

namespace anabatic::train {
namespace {

using anabatic::testing::agreement_tolerance;
using anabatic::testing::json_lines;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::tiny_run;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kKinds[] = {"layer", "sequence", "all_layers", "none"};

TEST(ExpertCounts, GiveTheShareOfTheBusiestAndTheIdlestExpertOfALayer) {
  ExpertCounts counts({1, 4}, 4);
  const std::vector<std::int64_t> values{4, 2, 1, 1, 0, 1, 79, 0};
  std::copy(values.begin(), values.end(), counts.values().begin());
  const std::vector<LayerBalance> layers = counts.balance();
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].layer, 1);
  EXPECT_EQ(layers[0].max_over_mean, 2.0);
  EXPECT_EQ(layers[0].min_over_mean, 0.5);
  EXPECT_EQ(layers[0].below_tenth, 0);
  EXPECT_EQ(layers[1].layer, 4);
  EXPECT_EQ(layers[1].max_over_mean, 3.95);
  EXPECT_EQ(layers[1].min_over_mean, 0.0);
  EXPECT_EQ(layers[1].below_tenth, 3);
  EXPECT_THAT(table_to_string(layers, "load"),
              HasSubstr("\n      1      2.00      0.50         0"));
  counts.clear();
  for (const LayerBalance& layer : counts.balance()) {
    EXPECT_EQ(layer.max_over_mean, 0.0);
    EXPECT_EQ(layer.below_tenth, 0);
  }
}

TEST(ExpertHistory, SumsTheLastHundredStepsAndNamesEachStarvedExpertOnce) {
  ExpertCounts step({0, 3}, 3);
  ExpertHistory history(step);
  const auto push = [&](std::vector<std::int64_t> values, int times) {
    std::copy(values.begin(), values.end(), step.values().begin());
    for (int i = 0; i < times; ++i) history.push(step);
  };
  push({10, 10, 10, 20, 10, 0}, 99);
  EXPECT_EQ(history.take_warning(), "");  // not a hundred yet
  push({10, 10, 10, 20, 10, 0}, 1);
  const std::string warning = history.take_warning();
  EXPECT_THAT(warning, HasSubstr("expert 2 of layer 3 (0.0 %)"));
  EXPECT_THAT(warning, Not(HasSubstr("layer 0")));
  EXPECT_THAT(warning, HasSubstr("last 100 steps"));
  push({30, 0, 0, 20, 10, 0}, 60);
  EXPECT_EQ(history.take_warning(), "");
  EXPECT_EQ(history.sums().values()[1], 400);
  EXPECT_EQ(history.sums().values()[0], 40 * 10 + 60 * 30);
  push({30, 0, 0, 20, 10, 0}, 40);
  EXPECT_THAT(history.take_warning(),
              HasSubstr("went to expert 1 of layer 0 (0.0 %), expert 2 of layer 0 (0.0 %);"));
  push({30, 0, 0, 20, 10, 0}, 100);
  EXPECT_EQ(history.take_warning(), "");
  EXPECT_EQ(history.num_steps(), 100);
}

// Documents of these many tokens.
std::string write_documents(const std::filesystem::path& prefix, const std::vector<int>& lengths) {
  io::IndexedFileWriter writer(prefix, io::TokenType::kUint16);
  int next = 3;
  for (const int length : lengths) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < length; ++i) ids.push_back(next = (next * 31 + 17) % 97);
    writer.append(ids);
    writer.end_document();
  }
  writer.finish();
  return prefix;
}

void expect_near(const nlohmann::json& got, const nlohmann::json& want, const std::string& what) {
  if (want.is_array()) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (std::size_t i = 0; i < want.size(); ++i) expect_near(got[i], want[i], what);
    return;
  }
  const double value = want.get<double>();
  EXPECT_LE(std::abs(got.get<double>() - value), agreement_tolerance(value, DType::kFloat32))
      << what << ": " << got << " for " << want;
}

// One step at learning rate 0 of these samples.
nlohmann::json step_of(const std::filesystem::path& folder, const std::vector<int>& lengths,
                       const std::string& kind, std::int64_t sequence_length,
                       std::int64_t micro_batch_size, std::int64_t micro_batches = 1) {
  RunConfig run = tiny_run(folder);
  run.data.train = {write_documents(folder / "documents", lengths)};
  run.data.sequence_length = sequence_length;
  run.data.shuffle = false;
  run.train.steps = 1;
  run.train.micro_batch_size = micro_batch_size;
  run.train.gradient_accumulation_steps = micro_batches;
  run.train.balance_loss = kind;
  if (kind != "none") run.train.balance_coef = 0.5;
  run.train.router_z_loss_coef = 0.5;
  run.train.resume = "never";
  run.optimizer.learning_rate = run.optimizer.min_learning_rate = 0;
  Trainer(run).train();
  return json_lines(folder / "run" / "metrics.jsonl").at(0);
}

TEST(Padding, ChangesNoLossLoadOrGradientOfAMicroBatch) {
  const TemporaryDirectory folder;
  const std::vector<int> lengths{16, 10, 6, 16};  // no row ends within a document
  for (const char* kind : kKinds) {
    const nlohmann::json want = step_of(folder.path(), lengths, kind, 48, 1);
    EXPECT_GT(want["aux_loss"], 0.5);
    EXPECT_GT(want["z_loss"], 0.0);
    for (const auto& [length, size] : {std::pair{256, 1}, {50, 1}, {16, 3}}) {
      const nlohmann::json got = step_of(folder.path(), lengths, kind, length, size);
      for (const char* key : {"loss", "aux_loss", "z_loss", "grad_norm", "expert_load",
                              "expert_load_min", "experts_below_10_percent", "tokens"})
        expect_near(got[key], want[key], fmt::format("{}, {} x {}: {}", kind, size, length, key));
    }
  }
}

// Micro-batches of 32, 32 and 8 tokens.
TEST(Padding, GivesMicroBatchesTheWeightOfTheirTokensOrDocuments) {
  const TemporaryDirectory folder;
  const std::vector<int> lengths{20, 12, 32, 8};
  for (const char* kind : kKinds) {
    const nlohmann::json whole = step_of(folder.path(), lengths, kind, 32, 3),
                         cut = step_of(folder.path(), lengths, kind, 32, 1, 3);
    for (const char* key : {"loss", "z_loss", "expert_load", "expert_load_min"})
      expect_near(cut[key], whole[key], fmt::format("{}: {}", kind, key));
    if (kind == std::string("sequence"))
      for (const char* key : {"aux_loss", "grad_norm"}) expect_near(cut[key], whole[key], key);
  }
}

TEST(Padding, IsNotCountedByEvaluate) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  // One document has a token and no label.
  run.data.validation = {write_documents(folder.path() / "held", {16, 16, 10, 5, 1})};
  const auto evaluate_with = [&](std::int64_t length, std::int64_t size) {
    run.data.sequence_length = length;
    run.train.micro_batch_size = size;
    return evaluate(run);
  };
  const Evaluation want = evaluate_with(48, 1);
  ASSERT_EQ(want.experts.size(), 2u);
  for (const auto& [length, size] : {std::pair{256, 1}, {48, 4}, {16, 1}, {16, 2}, {16, 7}}) {
    const Evaluation got = evaluate_with(length, size);
    expect_near(got.loss, want.loss, "loss");
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(got.experts[i].max_over_mean, want.experts[i].max_over_mean);
      EXPECT_EQ(got.experts[i].min_over_mean, want.experts[i].min_over_mean);
      EXPECT_EQ(got.experts[i].below_tenth, want.experts[i].below_tenth);
    }
  }
  // Packed samples leave no room within; what fills up a micro-batch is padding.
  run.data.packing = "concatenated";
  const Evaluation packed = evaluate_with(15, 1), filled = evaluate_with(15, 8);
  expect_near(filled.loss, packed.loss, "loss");
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(filled.experts[i].max_over_mean, packed.experts[i].max_over_mean);
}

TEST(Padding, OfAWholeMicroBatchGivesZeroLossesAndGradients) {
  for (const char* kind : kKinds) {
    const TemporaryDirectory folder;
    RunConfig run = tiny_run(folder.path());
    run.train.balance_loss = kind;
    run.train.router_z_loss_coef = 0.5;
    ModelSession session(run, false);
    auto request = training_request(run, session.config());
    request.with_update = false;
    const auto program = session.bind(request);
    session.load_parameters();
    session.refresh_derived();
    io::MicroBatch batch = random_step(run, session.config(), 0).micro_batches.at(0);
    std::fill(batch.documents.begin(), batch.documents.end(), io::kNoDocument);
    std::fill(batch.labels.begin(), batch.labels.end(), io::kIgnoredLabel);
    program->set_batch(batch);
    set_loss_scales(*program, {30, 32, 2, 30});  // of other micro-batches of the step
    program->run_alone(spec::Action::kForward);
    for (const char* output : {"loss", "aux_loss", "z_loss"})
      EXPECT_EQ(program->scalar(output), 0.0) << kind << ": " << output;
    program->run_alone(spec::Action::kBackward);
    for (const Name name : session.store().names()) {
      const std::string output = fmt::format("gradients.{}", text(name));
      if (!program->executor->has_output(output)) continue;
      const TensorView view = program->executor->output(output);
      for (std::int64_t i = 0; i < view.type->num_elements(); ++i)
        ASSERT_EQ(view.as<const float>()[i], 0.0f) << kind << ": " << output;
    }
  }
}

// One token again and again: every row is like the next, and the same two experts get all of them.
TEST(Trainer, WarnsOfExpertsWithoutTokensAndTellsTheLoadOfEachLayer) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  io::IndexedFileWriter writer(folder.path() / "same", io::TokenType::kUint16);
  writer.append(std::vector<std::int32_t>(16, 7));
  writer.end_document();
  writer.finish();
  run.data.train = {folder.path() / "same"};
  run.train.micro_batch_size = 1;
  run.train.steps = 100;
  run.optimizer.learning_rate = run.optimizer.min_learning_rate = 0;
  std::string messages;
  const LogScope scope([&](Severity severity, const std::string& text) {
    if (severity == Severity::kWarning) messages += text + "\n";
  });
  const TrainResult result = Trainer(run).train();
  EXPECT_THAT(messages, HasSubstr("of layer 0 (0.0 %)"));
  EXPECT_THAT(messages, HasSubstr("of layer 1 (0.0 %)"));
  EXPECT_EQ(result.expert_steps, 100);
  ASSERT_EQ(result.experts.size(), 2u);
  for (const LayerBalance& layer : result.experts) {
    EXPECT_EQ(layer.max_over_mean, 2.0);
    EXPECT_EQ(layer.min_over_mean, 0.0);
    EXPECT_EQ(layer.below_tenth, 2);
  }
}

TEST(BalanceLoss, IsBoundByCheckpoints) {
  const TemporaryDirectory folder;
  RunConfig run = tiny_run(folder.path());
  run.train.steps = 1;
  Trainer(run).train();
  run.train.steps = 2;
  RunConfig other = run;
  other.train.balance_loss = "sequence";
  EXPECT_THROW(Trainer{other}, InvalidArgument);
  other = run;
  other.train.balance_coef = 0.25;
  EXPECT_THROW(Trainer{other}, InvalidArgument);
  other = run;
  other.train.router_z_loss_coef = 0.25;
  EXPECT_THROW(Trainer{other}, InvalidArgument);
  EXPECT_NO_THROW(Trainer{run});
}

TEST(BalanceLoss, HasAWeightOnlyWhereThereAreExperts) {
  const model::ModelConfig dense{.model_type = "llama"};
  RunConfig run;
  EXPECT_NO_THROW(training_request(run, dense));
  run.train.balance_coef = 0.25;
  EXPECT_THROW(training_request(run, dense), InvalidArgument);
  run.train.balance_coef = RunConfig::Train::kCoefOfModel;
  run.train.router_z_loss_coef = 0.25;
  EXPECT_THROW(training_request(run, dense), InvalidArgument);
}

}  // namespace
}  // namespace anabatic::train
