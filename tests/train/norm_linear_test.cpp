// SPDX-License-Identifier: Apache-2.0
// Runs whose products apply the norms in front of them: their bits are those of norms apart, in any
// plan, and the frame has no normalised rows.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "device/topology.h"
#include "ir/op_schema.h"
#include "plan/account.h"
#include "plan/prices.h"
#include "spec/product_prologue.h"
#include "support/plan_changes.h"
#include "support/planned_run.h"
#include "support/test_config.h"
#include "support/tiny_run.h"
#include "support/trained_run.h"
#include "train/objective/run_model.h"
#include "train/run_plan.h"

namespace anabatic::train {
namespace {

using anabatic::testing::plan_changes;
using anabatic::testing::plan_of;
using anabatic::testing::PlannedRun;
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
  run.compiler.norms_in_products = true;
  return run;
}

RunConfig without_pass(RunConfig run) {
  run.compiler.disable_passes.emplace_back("fuse_norm_linear");
  run.train.output = std::filesystem::path(run.train.output).parent_path() / "apart";
  return run;
}

std::int64_t count(const ir::Graph& graph, std::string_view op) {
  return std::ranges::count_if(graph.nodes, [&](const ir::Node& node) {
    return node.op->name.find(op) != node.op->name.npos && node.tag.phase == ir::Phase::kForward;
  });
}
std::int64_t count(const RunConfig& run, std::string_view op) {
  return count(plan_of(run).budgeted.plan.training.graph, op);
}

constexpr int kManyThreads = 5;

// By these shares of a norm in products.
plan::OpEfficiency with_shares(double forward, double gradient) {
  plan::OpEfficiency efficiency = plan::default_efficiency();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    efficiency.share_of_roof[plan::norm_price_key(spec::ProductRole::kForward, dtype)] = forward;
    efficiency.share_of_roof[plan::norm_price_key(spec::ProductRole::kWeightGradient, dtype)] =
        gradient;
  }
  return efficiency;
}
RunPlan planned_by(const RunConfig& run, const plan::OpEfficiency& efficiency,
                   const StepRequest& request = {}, int threads = kManyThreads) {
  return *plan_run(run, load_run_model(run), device::describe_cpu(threads), efficiency, request);
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
    for (const char* precision : {"bf16", "int8"}) {
      const RunConfig run = run_of(folder.path(), row.model, precision);
      EXPECT_EQ(count(run, "norm_statistics"), row.sites) << row.model << " " << precision;
      EXPECT_EQ(count(without_pass(run), "norm_statistics"), 0);
    }
  }
  const TemporaryDirectory folder;
  for (const char* precision : {"mixed", "fp16"})
    EXPECT_EQ(count(run_of(folder.path(), kLlama, precision), "norm_statistics"), 0) << precision;
}

// Where norm and products take no longer so, by calibrated shares, site by site.
TEST(NormLinear, IsTakenWhereItsPriceIsLower) {
  if (!anabatic::testing::has_optional_passes()) GTEST_SKIP() << "the pass is off";
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder.path(), kLlama, "bf16");
  run.compiler.norms_in_products = false;
  const auto sites = [&](double forward, double gradient) {
    return count(planned_by(run, with_shares(forward, gradient)).training.graph, "norm_statistics");
  };
  EXPECT_EQ(sites(1000, 1000), 4);
  EXPECT_EQ(sites(1000, 0.01), 0);
  EXPECT_EQ(sites(0.01, 1000), 0);
}

// Without a calibration, norms of narrow rows go into products on few threads.
TEST(NormLinear, IsTakenOnFewThreadsWhateverTheCalibration) {
  if (!anabatic::testing::has_optional_passes()) GTEST_SKIP() << "the pass is off";
  const TemporaryDirectory folder;
  plan::OpEfficiency efficiency = plan::default_efficiency();
  const auto sites = [&](const std::string& fields, int threads) {
    RunConfig run = run_of(folder.path(), kLlama + fields, "bf16");
    run.compiler.norms_in_products = false;
    return count(planned_by(run, efficiency, {}, threads).training.graph, "norm_statistics");
  };
  EXPECT_EQ(sites("", 1), 4);
  EXPECT_EQ(sites("", 4), 4);
  EXPECT_EQ(sites("", 5), 0);
  EXPECT_EQ(sites(R"(, "hidden_size": 2048, "intermediate_size": 4096)", 2), 0);
  efficiency = with_shares(0.01, 0.01);
  EXPECT_EQ(sites("", 4), 4);
  EXPECT_EQ(sites("", 5), 0);
}

// More threads cut a weight gradient into more blocks, each of which normalises the rows that it
// copies. The forward normalises them once a block of columns.
TEST(NormLinear, HasAPriceThatGrowsWithThreadsAndColumns) {
  const auto seconds = [](int threads, std::int64_t out, spec::ProductRole role) {
    spec::DeviceSpec device = device::describe_cpu(threads);
    device.copy_bytes_per_second = 1e6;
    return plan::norm_roof_seconds(1000, 500, out, DType::kBFloat16, role, device);
  };
  using enum spec::ProductRole;
  EXPECT_EQ(seconds(1, 500, kForward), 1);
  EXPECT_EQ(seconds(64, 500, kForward), 1);
  EXPECT_EQ(seconds(1, 5000, kForward), 10);
  EXPECT_EQ(seconds(1, 500, kWeightGradient), 1);
  EXPECT_EQ(seconds(4, 500, kWeightGradient), 4);
  EXPECT_EQ(seconds(16, 500, kWeightGradient), 8);
}

// A budget takes what costs least for its bytes: norms in products that take a little longer so,
// before anything that is computed again.
TEST(NormLinear, IsTakenWhereABudgetNeedsItsBytes) {
  if (!anabatic::testing::has_optional_passes())
    GTEST_SKIP() << "trivial planners give every value bytes of its own";
  const TemporaryDirectory folder;
  RunConfig run =
      run_of(folder.path(), kLlama + R"(, "num_hidden_layers": 6, "hidden_size": 64)", "bf16");
  run.compiler.norms_in_products = run.compiler.trivial_planners = false;
  run.train.micro_batch_size = 4;
  run.data.sequence_length = 128;
  const plan::OpEfficiency efficiency = with_shares(2, 2);
  const auto within = [&](std::int64_t bytes) {
    return planned_by(run, efficiency, {.bytes = bytes});
  };
  const auto norms = [](const RunPlan& plan) {
    return count(plan.training.graph, "norm_statistics");
  };
  const auto seconds = [&](const RunPlan& plan) {
    return price_run(run, plan.training, device::describe_cpu(kManyThreads), efficiency).seconds;
  };
  const RunPlan whole = within(0);
  EXPECT_EQ(norms(whole), 0);
  const std::int64_t peak = whole.training.plan.peak_bytes();
  EXPECT_EQ(norms(within(peak * 98 / 100)), 0);  // slices of the head cost less
  const std::int64_t bytes = peak * 45 / 100;
  const RunPlan leaner = within(bytes);
  EXPECT_EQ(norms(leaner), 12);
  EXPECT_EQ(leaner.training.memory.decisions.norms_in_products->size(), 12u);
  EXPECT_LE(leaner.training.plan.peak_bytes(), bytes);
  EXPECT_THAT(plan::to_string(leaner.training.memory),
              ::testing::ContainsRegex("norms, dropout in products +in +12 places"));
  run.compiler.disable_passes.emplace_back("fuse_norm_linear");
  EXPECT_LT(seconds(leaner), seconds(within(bytes)));
  run.compiler.disable_passes.clear();
  // A replay has the same norms, by whatever prices.
  for (const RunPlan* plan : {&whole, &leaner})
    for (const double share : {0.01, 1000.0})
      EXPECT_EQ(norms(planned_by(run, with_shares(share, share),
                                 {.replay = &plan->training.memory.decisions})),
                norms(*plan));
}

void expect_equal_bits_in_all_plans(const RunConfig& base, const std::string& want) {
  for (const auto& [name, change] : plan_changes()) {
    RunConfig run = base;
    change(run);
    if (!run.memory.recompute.empty()) run.memory.recompute = {"attention", "mlp"};
    run.train.output = std::filesystem::path(base.train.output).parent_path() / name;
    EXPECT_TRUE(trained_bytes(run) == want) << name;
  }
}

TEST(NormLinear, HasEqualBitsHoweverItIsPlanned) {
  for (const std::string& model : {kLlama, kGpt2, std::string(), anabatic::testing::kTinyLatent})
    for (const char* precision : {"fp32", "bf16", "int8"}) {
      SCOPED_TRACE(fmt::format("{} {}", model, precision));
      const TemporaryDirectory folder;
      const RunConfig base = run_of(folder.path(), model, precision);
      const std::string want = trained_bytes(without_pass(base));
      EXPECT_TRUE(trained_bytes(base) == want);
      if (model != kLlama || precision == std::string("fp32")) continue;
      expect_equal_bits_in_all_plans(base, want);
    }
}

// Bytes that the backward reads of each layer, and outside of them.
std::map<std::int32_t, std::int64_t> saved_bytes(const RunConfig& run) {
  const PlannedRun planned = plan_of(run);
  const lower::Compiled& training = planned.budgeted.plan.training;
  return plan::make_account(training.graph, training.plan).saved_by_layer;
}

// A step keeps no more in int8 than in bf16.
TEST(NormLinear, LeavesAsLittleInInt8AsInBf16) {
  if (!anabatic::testing::has_optional_passes()) GTEST_SKIP() << "the pass is off";
  for (const std::string& model : {kLlama, kGpt2, std::string()}) {
    const TemporaryDirectory folder;
    const auto of_int8 = saved_bytes(run_of(folder.path(), model, "int8"));
    for (const auto& [layer, bytes] : saved_bytes(run_of(folder.path(), model, "bf16")))
      EXPECT_LE(of_int8.at(layer), bytes) << model << " " << layer;
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

RunConfig with_dropout(RunConfig run, double rate) {
  run.lora.targets = {"attention", "mlp"};
  run.lora.rank = 4;
  run.lora.dropout = rate;
  return run;
}

// What adapters read is dropped by their products, in any plan.
TEST(NormLinear, HasEqualBitsWithDropoutOfAdapters) {
  for (const std::string& model : {kLlama, kGpt2, std::string(), anabatic::testing::kTinyLatent})
    for (const char* precision : {"fp32", "bf16", "int8"}) {
      SCOPED_TRACE(fmt::format("{} {}", model, precision));
      const TemporaryDirectory folder;
      RunConfig base = with_dropout(run_of(folder.path(), model, precision), 0.25);
      if (model.empty()) base.lora.targets = {"attention"};  // rows of experts have no dropout
      const std::string want = trained_bytes(without_pass(base));
      EXPECT_TRUE(trained_bytes(base) == want);
      if (model != kLlama || precision != std::string("bf16")) continue;
      expect_equal_bits_in_all_plans(base, want);
    }
}

// Each site of dropout is in its products, and the norm in front of it too. Then a step keeps what
// it keeps without dropout.
TEST(NormLinear, KeepsNoDroppedRows) {
  if (!anabatic::testing::has_optional_passes())
    GTEST_SKIP() << "trivial planners give every value bytes of its own";
  const TemporaryDirectory folder;
  RunConfig run = run_of(folder.path(), kLlama, "bf16");
  run.compiler.trivial_planners = false;
  const RunConfig drops = with_dropout(run, 0.25);
  EXPECT_EQ(count(drops, "dropout"), 0);
  EXPECT_EQ(count(without_pass(drops), "dropout"), 2 * 4);
  EXPECT_EQ(saved_bytes(drops), saved_bytes(with_dropout(run, 0)));
}

// Products draw once for each copy of a row. So dropout stays apart where draws take long, but for
// a run that asks, or a plan that is replayed.
TEST(NormLinear, TakesDropoutByItsPrice) {
  if (!anabatic::testing::has_optional_passes()) GTEST_SKIP() << "the pass is off";
  const TemporaryDirectory folder;
  RunConfig run = with_dropout(run_of(folder.path(), kLlama, "bf16"), 0.25);
  const auto planned = [&](double share, const StepRequest& request = {}) {
    plan::OpEfficiency efficiency = with_shares(1000, 1000);
    efficiency.share_of_roof["dropout bf16"] = share;
    return planned_by(run, efficiency, request);
  };
  constexpr double kDear = 1e-6, kCheap = 1e6;
  const auto sites = [](const RunPlan& plan) { return count(plan.training.graph, "dropout"); };
  const RunPlan taken = planned(kDear);
  EXPECT_EQ(sites(taken), 0);
  EXPECT_EQ(taken.training.memory.decisions.norms_in_products->size(), 2u * (4 + 2));
  run.compiler.norms_in_products = false;
  EXPECT_EQ(sites(planned(kCheap)), 0);
  const RunPlan apart = planned(kDear);
  EXPECT_EQ(sites(apart), 2 * 4);
  EXPECT_TRUE(apart.training.memory.decisions.norms_in_products->empty());
  for (const double share : {kDear, kCheap})
    for (const RunPlan* plan : {&taken, &apart})
      EXPECT_EQ(sites(planned(share, {.replay = &plan->training.memory.decisions})), sites(*plan));
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
