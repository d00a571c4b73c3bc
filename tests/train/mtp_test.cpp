// SPDX-License-Identifier: Apache-2.0
// Runs of models with layers of multi-token prediction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "io/safetensors.h"
#include "support/tiny_run.h"
#include "support/tolerance.h"
#include "train/evaluate.h"
#include "train/objective/mtp_batch.h"
#include "train/objective/run_model.h"
#include "train/trainer.h"

namespace anabatic::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::json_lines;
using testing::TemporaryDirectory;

constexpr const char* kModel = R"("model_type": "glm4_moe", "moe_intermediate_size": 12,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 2)";
constexpr const char* kProjection = "model.layers.3.eh_proj.weight";
constexpr const char* kExpert = "model.layers.2.mlp.experts.1.up_proj.weight";
constexpr const char* kBias = "model.layers.2.mlp.gate.e_score_correction_bias";

RunConfig random_run(const fs::path& folder, double coef = 0.5) {
  RunConfig run = testing::tiny_run(folder, kModel);
  run.train.steps = 2;
  run.train.mtp_loss_coef = coef;
  return run;
}

// A run that starts from a checkpoint.
RunConfig run_from(const fs::path& checkpoint, const fs::path& folder) {
  RunConfig run = testing::tiny_run(folder, kModel);
  run.model = {.path = checkpoint.string()};
  run.train.steps = 2;
  return run;
}

// Bytes of a tensor, empty where the checkpoint has none.
std::string bytes_of(const fs::path& checkpoint, const char* tensor) {
  const io::SafetensorsDirectory files = io::SafetensorsDirectory::open(checkpoint);
  const io::TensorEntry* entry = files.find(tensor);
  if (entry == nullptr) return "";
  std::string bytes(entry->data.size(), '\0');
  std::memcpy(bytes.data(), entry->data.data(), bytes.size());
  return bytes;
}

TEST(MtpBatch, CountsLabelsWithinADocument) {
  io::MicroBatch batch;
  batch.tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  batch.documents = {0, 0, 0, 0, 4, 4, io::kNoDocument, io::kNoDocument};
  // Row 2 is masked: what rows 1 and 0 would predict further on is masked too.
  batch.labels = {2, 3, -100, -100, 6, -100, -100, -100};
  EXPECT_EQ(mtp_label_weight(batch, 1), 1);  // row 0: 3
  EXPECT_EQ(mtp_label_weight(batch, 2), 0);
  batch.labels[2] = 4;
  EXPECT_EQ(mtp_label_weight(batch, 1), 2);
  EXPECT_EQ(mtp_label_weight(batch, 2), 1);  // row 0: 4
  EXPECT_EQ(mtp_label_weight(batch, 3), 0);
  // Where documents are concatenated, labels of the plain loss go on in the next one.
  batch.labels[3] = 5;
  EXPECT_EQ(mtp_label_weight(batch, 1), 2);
}

TEST(Mtp, ARandomStartHasLayersWhereTheirLossHasAWeight) {
  const TemporaryDirectory with, without;
  RunConfig run = random_run(with.path());
  run.train.steps = 40;
  run.optimizer.learning_rate = 1e-2;
  const fs::path checkpoint = Trainer(run).train().checkpoint;
  const auto lines = json_lines(with.path() / "run" / "metrics.jsonl");
  const auto mean_loss = [&](std::size_t first) {
    double sum = 0;
    for (std::size_t i = first; i < first + 8; ++i) sum += lines[i]["mtp_loss"].get<double>();
    return sum / 8;
  };
  EXPECT_LT(mean_loss(lines.size() - 8), mean_loss(0) - 0.3);
  EXPECT_EQ(lines.back()["expert_load"].size(), 3u) << "one layer, and two of prediction";
  EXPECT_FALSE(bytes_of(checkpoint, kProjection).empty());
  EXPECT_NE(bytes_of(checkpoint, kBias), std::string(16, '\0')) << "the rule moves it";

  const fs::path plain =
      Trainer(random_run(without.path(), RunConfig::Train::kCoefOfFiles)).train().checkpoint;
  EXPECT_TRUE(bytes_of(plain, kProjection).empty());
  EXPECT_FALSE(json_lines(without.path() / "run" / "metrics.jsonl").front().contains("mtp_loss"));
}

TEST(Mtp, TheLossDoesNotDependOnTheCutOfAStep) {
  std::vector<double> losses;
  for (const std::int64_t micro_batches : {1, 4}) {
    const TemporaryDirectory folder;
    RunConfig run = random_run(folder.path());
    run.train.steps = 1;
    run.train.gradient_accumulation_steps = micro_batches;
    run.train.micro_batch_size = 4 / micro_batches;
    Trainer(run).train();
    losses.push_back(json_lines(folder.path() / "run" / "metrics.jsonl").front()["mtp_loss"]);
  }
  EXPECT_LE(std::abs(losses[0] - losses[1]),
            testing::agreement_tolerance(losses[0], DType::kFloat32));
}

TEST(Mtp, LayersOfFilesAreTrainedKeptOrLeftOut) {
  const TemporaryDirectory start, trained, kept, dropped;
  const fs::path source = Trainer(random_run(start.path())).train().checkpoint;
  const fs::path after = Trainer(run_from(source, trained.path())).train().checkpoint;
  for (const char* tensor : {kProjection, kExpert}) {
    EXPECT_EQ(bytes_of(after, tensor).size(), bytes_of(source, tensor).size());
    EXPECT_NE(bytes_of(after, tensor), bytes_of(source, tensor)) << tensor;
  }
  EXPECT_EQ(bytes_of(after, kBias), bytes_of(source, kBias));  // auto is 0 here

  RunConfig still = run_from(source, kept.path());
  still.train.mtp_loss_coef = 0;
  const fs::path same = Trainer(still).train().checkpoint;
  for (const char* tensor : {kProjection, kExpert, kBias})
    EXPECT_EQ(bytes_of(same, tensor), bytes_of(source, tensor)) << tensor;
  EXPECT_NE(bytes_of(same, "lm_head.weight"), bytes_of(source, "lm_head.weight"));

  RunConfig without = run_from(source, dropped.path());
  without.model.keep_mtp = false;
  const fs::path less = Trainer(without).train().checkpoint;
  EXPECT_TRUE(bytes_of(less, kProjection).empty());
  // What the model itself computes does not depend on layers that are not trained.
  EXPECT_EQ(bytes_of(less, "lm_head.weight"), bytes_of(same, "lm_head.weight"));
}

TEST(Mtp, ARunResumesWithItsLayers) {
  const TemporaryDirectory whole, cut;
  RunConfig run = random_run(whole.path());
  run.train.steps = 4;
  const fs::path want = Trainer(run).train().checkpoint;
  Trainer(random_run(cut.path())).train();
  run.train.output = (cut.path() / "run").string();
  EXPECT_EQ(testing::checkpoint_bytes(Trainer(run).train().checkpoint),
            testing::checkpoint_bytes(want));
}

TEST(Mtp, EvaluationDoesNotReadTheLayers) {
  const TemporaryDirectory start, other;
  const fs::path source = Trainer(random_run(start.path())).train().checkpoint;
  RunConfig run = run_from(source, other.path());
  run.data.validation = run.data.train;
  const double loss = evaluate(run).loss;
  run.model.keep_mtp = false;
  EXPECT_EQ(evaluate(run).loss, loss);
  EXPECT_EQ(evaluate(run).experts.size(), 1u);
}

TEST(Mtp, AWeightNeedsLayers) {
  const TemporaryDirectory dense, start, other;
  const auto refusal = [](const RunConfig& run) -> std::string {
    try {
      load_run_model(run);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  RunConfig run = testing::tiny_run(dense.path());
  EXPECT_EQ(refusal(run), "");
  run.train.mtp_loss_coef = 0.1;
  EXPECT_THAT(refusal(run), HasSubstr("num_nextn_predict_layers of config.json"));
  run.train.mtp_loss_coef = RunConfig::Train::kCoefOfFiles;
  RunConfig random = random_run(start.path(), RunConfig::Train::kCoefOfFiles);
  const fs::path plain = Trainer(random).train().checkpoint;
  RunConfig from = run_from(plain, other.path());
  EXPECT_TRUE(load_run_model(from).spec.mtp.empty()) << "files without such layers are fine";
  from.train.mtp_loss_coef = 0.1;
  EXPECT_THAT(refusal(from), HasSubstr("the files of model.path"));
}

TEST(RunModel, ExpertsAreBalancedByTheRuleWhereAFamilyHasNoLoss) {
  const TemporaryDirectory folder;
  RunConfig run = random_run(folder.path());
  const model::ModelConfig config = load_run_model(run);
  EXPECT_EQ(balance_coef_of(run, config), 0);
  EXPECT_EQ(router_bias_rate_of(run, config), 1e-3);
  EXPECT_TRUE(balances_experts(run, config));
  run.train.router_bias_update_rate = 0;
  EXPECT_FALSE(balances_experts(run, config));
  run.train.router_bias_update_rate = RunConfig::Train::kRateOfModel;
  run.model.init = "pretrained";
  EXPECT_EQ(router_bias_rate_of(run, config), 0);

  const TemporaryDirectory other;
  const RunConfig minimax = testing::tiny_run(other.path(), R"("model_type": "minimax_m2")");
  const model::ModelConfig with_loss = load_run_model(minimax);
  EXPECT_EQ(router_bias_rate_of(minimax, with_loss), 0);
  EXPECT_EQ(balance_coef_of(minimax, with_loss), 0.01);
}

TEST(RunModel, SaysWhatABalanceLossCountsWhereTransformersCountsOtherwise) {
  const TemporaryDirectory folder, other;
  RunConfig run = testing::tiny_run(folder.path(), R"("model_type": "minimax_m2")");
  const model::ModelConfig config = load_run_model(run);
  EXPECT_THAT(note_on_balance_loss(run, config),
              HasSubstr("layer counts the experts that the router"));
  run.train.balance_loss = "all_layers";
  EXPECT_THAT(
      note_on_balance_loss(run, config),
      HasSubstr("largest softmax(logits), as transformers does, not those that the router"));
  run.train.balance_coef = 0;
  EXPECT_EQ(note_on_balance_loss(run, config), "");
  const RunConfig mixtral = testing::tiny_run(other.path());
  EXPECT_EQ(note_on_balance_loss(mixtral, load_run_model(mixtral)), "");
}

}  // namespace
}  // namespace anabatic::train
