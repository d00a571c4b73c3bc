// SPDX-License-Identifier: Apache-2.0
// Runs whose products apply the norms in front of them: their bits are those of norms apart, in any
// plan, and the frame has no normalised rows.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ir/op_schema.h"
#include "spec/product_norm.h"
#include "support/plan_changes.h"
#include "support/planned_run.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/trained_run.h"

namespace anabatic::train {
namespace {

using anabatic::testing::plan_changes;
using anabatic::testing::plan_of;
using anabatic::testing::TemporaryDirectory;
using anabatic::testing::trained_bytes;

const std::string kDense =
    R"("num_local_experts": null, "num_experts_per_tok": null, "output_router_logits": false)";
const std::string kLlama = R"("model_type": "llama", )" + kDense;
const std::string kGpt2 = R"("model_type": "gpt2", "num_key_value_heads": 4, "resid_pdrop": 0,
  "embd_pdrop": 0, "attn_pdrop": 0, )" +
                          kDense;

RunConfig run_of(const std::filesystem::path& folder, const std::string& model,
                 const std::string& precision) {
  RunConfig run = anabatic::testing::tiny_run(folder, model);
  run.train.steps = 2;
  run.train.precision = precision;
  return run;
}

RunConfig without_pass(RunConfig run) {
  run.compiler.disable_passes.emplace_back("fuse_norm_linear");
  run.train.output = std::filesystem::path(run.train.output).parent_path() / "apart";
  return run;
}

std::int64_t count(const RunConfig& run, std::string_view op) {
  std::int64_t number = 0;
  for (const ir::Node& node : plan_of(run).budgeted.plan.training.graph.nodes)
    number += node.op->name.find(op) != node.op->name.npos && node.tag.phase == ir::Phase::kForward;
  return number;
}

// Two layers have four norms, but norms of rows that experts gather stay.
TEST(NormLinear, TakesTheNormsOfDenseProducts) {
  if (!anabatic::testing::has_optional_passes()) GTEST_SKIP() << "the pass is off";
  struct Row {
    std::string model;
    std::int64_t sites;
  };
  for (const Row& row : {Row{kLlama, 4}, Row{kGpt2, 4}, Row{"", 2}}) {
    const TemporaryDirectory folder;
    const RunConfig run = run_of(folder.path(), row.model, "bf16");
    EXPECT_EQ(count(run, "norm_statistics"), row.sites) << row.model;
    EXPECT_EQ(count(without_pass(run), "norm_statistics"), 0);
  }
  const TemporaryDirectory folder;
  for (const char* precision : {"int8", "mixed", "fp16"})
    EXPECT_EQ(count(run_of(folder.path(), kLlama, precision), "norm_statistics"), 0) << precision;
}

TEST(NormLinear, HasEqualBitsHoweverItIsPlanned) {
  for (const std::string& model : {kLlama, kGpt2, std::string(), anabatic::testing::kTinyLatent})
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(fmt::format("{} {}", model, precision));
      const TemporaryDirectory folder;
      const RunConfig base = run_of(folder.path(), model, precision);
      const std::string want = trained_bytes(without_pass(base));
      EXPECT_TRUE(trained_bytes(base) == want);
      if (model != kLlama || precision == std::string("fp32")) continue;
      for (const auto& [name, change] : plan_changes()) {
        RunConfig run = base;
        change(run);
        if (!run.memory.recompute.empty()) run.memory.recompute = {"attention", "mlp"};
        run.train.output = folder.path() / name;
        EXPECT_TRUE(trained_bytes(run) == want) << name;
      }
    }
}

// The weight of a norm has its update after the last product that reads it.
TEST(NormLinear, HasEqualBitsWithUpdatesInTheBackward) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder.path(), kLlama, "bf16");
  run.optimizer.update = "in_backward";
  run.train.gradient_accumulation_steps = 2;
  EXPECT_TRUE(trained_bytes(run) == trained_bytes(without_pass(run)));
}

// Adapters read the rows too.
TEST(NormLinear, HasEqualBitsWithAdapters) {
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder.path(), kLlama, "bf16");
  run.lora.targets = {"attention", "mlp"};
  run.lora.rank = 4;
  EXPECT_TRUE(trained_bytes(run) == trained_bytes(without_pass(run)));
}

// Products are recomputed with the norm that they apply, one by one too, and so are statistics.
TEST(NormLinear, RecomputesWithEqualBits) {
  if (!anabatic::testing::has_optional_passes()) GTEST_SKIP() << "the pass is off";
  struct Row {
    std::vector<std::string> hints;
    const char* op;
  };
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder.path(), kLlama, "bf16");
  run.compiler.trivial_planners = false;
  const std::string want = trained_bytes(without_pass(run));
  for (const Row& row : {Row{{"mlp.gate"}, "linear"}, Row{{"mlp.gate", "mlp.up"}, "linear"},
                         Row{{"attention.k_rope", "attention.v"}, "linear_many"},
                         Row{{"attention_norm", "mlp_norm"}, "norm_statistics"},
                         Row{{"attention", "mlp"}, "linear_many"}}) {
    run.memory.recompute = row.hints;
    run.train.output = folder.path() / row.hints.back();
    const anabatic::testing::PlannedRun planned = plan_of(run);
    EXPECT_TRUE(std::ranges::any_of(planned.budgeted.plan.training.graph.nodes,
                                    [&](const ir::Node& node) {
                                      return node.tag.phase == ir::Phase::kRecompute &&
                                             node.op->name == row.op &&
                                             node.attributes.contains(spec::kNorm);
                                    }))
        << row.hints.front();
    EXPECT_TRUE(trained_bytes(run) == want) << row.hints.front();
  }
}

// Statistics stand in place of normalised rows, at the peak too.
TEST(NormLinear, KeepsNoNormalisedRows) {
  if (!anabatic::testing::has_optional_passes())
    GTEST_SKIP() << "trivial planners give every value bytes of its own";
  constexpr std::int64_t kLayers = 6, kHidden = 64;
  const TemporaryDirectory folder;
  RunConfig run =
      run_of(folder.path(), kLlama + R"(, "num_hidden_layers": 6, "hidden_size": 64)", "bf16");
  run.train.micro_batch_size = 4;
  run.data.sequence_length = 128;
  run.compiler.trivial_planners = false;
  const auto frame = [](const RunConfig& of) {
    return plan_of(of).budgeted.plan.training.plan.frame_bytes;
  };
  const std::int64_t rows = run.train.micro_batch_size * run.data.sequence_length,
                     a_site = rows * (2 * kHidden - std::int64_t{sizeof(float)});
  // The last norm in front of a product may be the last value that the frame makes room for.
  EXPECT_GE(frame(without_pass(run)) - frame(run), (2 * kLayers - 1) * a_site);
}

}  // namespace
}  // namespace anabatic::train
