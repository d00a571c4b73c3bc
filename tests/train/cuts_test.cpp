// SPDX-License-Identifier: Apache-2.0
// A step's loss and gradients do not depend on its cut, and a planted mean of means is named.
#include "train/proof/cuts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/tiny_run.h"
#include "train/open_dataset.h"
#include "train/ranks/ranks.h"

namespace anabatic::train {
namespace {

using testing::TemporaryDirectory;
using testing::tiny_run;

RunConfig packed_run(const TemporaryDirectory& folder, const std::string& extra = "") {
  RunConfig run = tiny_run(folder.path(), extra);
  run.data.sequence_length = 64;
  return run;
}

std::string describe(const CutsReport& report) {
  std::string text;
  for (const CutResult& cut : report.cuts)
    text += fmt::format("{}: {} of {}, {}; loss {} and {}\n", cut.name, cut.difference, cut.bound,
                        cut.worst, cut.loss, report.loss);
  return text;
}

// Eight samples of a run, and a model to run them with.
struct Step {
  explicit Step(const RunConfig& run) : session(run, false) {
    const io::Dataset dataset = open_dataset(run.data.train, run, session.config());
    io::LoaderOptions options = loader_options(run, {});
    options.micro_batch_size = 8;
    options.accumulation_steps = 1;
    batch = with_uneven_weights(io::Loader(dataset, options).load_step(0).micro_batches[0]);
    cuts = cuts_of(batch, run.data.sequence_length);
  }
  CutsReport compare() { return compare_cuts(session, documents_alone(batch), cuts); }

  ModelSession session;
  io::MicroBatch batch;
  std::vector<Cut> cuts;
};

TEST(Cuts, GiveEqualLossAndGradients) {
  // Whose keys have a bias without rotation: its gradient is 0 but for rounding.
  const std::string bias =
      R"("model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64,
         "activation_function": "gelu_new", "bos_token_id": 1, "eos_token_id": 1,
         "layer_norm_epsilon": 1e-5, "num_key_value_heads": 4, "num_local_experts": 0,
         "output_router_logits": false)";
  const std::string further =
      R"("model_type": "glm4_moe", "moe_intermediate_size": 12, "n_shared_experts": 1,
         "first_k_dense_replace": 1, "num_nextn_predict_layers": 2)";
  for (const std::string& extra :
       {std::string(), testing::kTinyLatent, testing::kTinySinks, bias, further})
    for (const char* precision : {"fp32", "bf16"}) {
      const TemporaryDirectory folder;
      RunConfig run = packed_run(folder, extra);
      run.train.precision = precision;
      if (extra == further) run.train.mtp_loss_coef = 0.5;
      const CutsReport report = check_cuts(run);
      EXPECT_TRUE(report.holds()) << extra << " in " << precision << ":\n" << describe(report);
      EXPECT_GT(report.rows, 8);
      EXPECT_GT(report.labels, report.rows);
      EXPECT_GE(report.states, 15);
      EXPECT_EQ(report.cuts.size(), 3u);
    }
}

TEST(Cuts, HoldForAdaptersAndForSharedAttention) {
  const TemporaryDirectory folder;
  RunConfig run = packed_run(folder);
  run.data.packing = "concatenated";
  CutsReport report = check_cuts(run);
  EXPECT_TRUE(report.holds()) << describe(report);
  EXPECT_EQ(report.rows, 8);
  run.data.packing = "isolated";
  run.lora.targets = {"attention", "experts"};
  report = check_cuts(run);
  EXPECT_TRUE(report.holds()) << describe(report);
}

TEST(Cuts, WeightsAveragedForEachMicroBatchAreFound) {
  const TemporaryDirectory folder;
  Step step(packed_run(folder));
  ASSERT_TRUE(step.compare().holds());
  Cut& cut = step.cuts.back();
  double whole = 0;
  for (const io::MicroBatch& part : cut.micro_batches) whole += part.label_weight();
  const double mean = whole / static_cast<double>(cut.micro_batches.size());
  for (io::MicroBatch& part : cut.micro_batches)
    for (float& weight : part.weights) weight *= static_cast<float>(mean / part.label_weight());
  const CutsReport report = step.compare();
  EXPECT_FALSE(report.holds()) << describe(report);
  EXPECT_TRUE(report.cuts[0].holds && report.cuts[1].holds);
  EXPECT_FALSE(report.cuts[2].holds);
  EXPECT_NE(report.cuts[2].worst, "");
}

TEST(Cuts, ALostMicroBatchIsFound) {
  const TemporaryDirectory folder;
  Step step(packed_run(folder));
  io::MicroBatch& part = step.cuts[1].micro_batches[0];
  std::fill(part.weights.begin(), part.weights.end(), 0.0f);
  const CutsReport report = step.compare();
  EXPECT_TRUE(report.cuts[0].holds && report.cuts[2].holds);
  EXPECT_FALSE(report.cuts[1].holds);
}

TEST(Cuts, HoldTheSameRows) {
  const TemporaryDirectory folder;
  const Step step(packed_run(folder));
  const auto weight_of = [](const std::vector<io::MicroBatch>& batches) {
    double sum = 0;
    for (const io::MicroBatch& batch : batches) sum += batch.label_weight();
    return sum;
  };
  const double want = step.batch.label_weight();
  EXPECT_EQ(weight_of(documents_alone(step.batch)), want);
  for (const Cut& cut : step.cuts) EXPECT_EQ(weight_of(cut.micro_batches), want) << cut.name;
}

}  // namespace
}  // namespace anabatic::train
