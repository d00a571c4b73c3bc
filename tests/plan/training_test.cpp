// SPDX-License-Identifier: Apache-2.0
// Whole training steps of a small MoE with a tied embedding, by the ref kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "device/topology.h"
#include "plan/training_fixture.h"
#include "spec/activation.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

StepsOptions ref_options() {
  StepsOptions options;
  options.compile.only_kernels = "ref";
  options.executor.poison = true;
  return options;
}

TEST(GoldenTraining, LossFallsOnOneBatch) {
  StepsOptions options = ref_options();
  options.end_step = 40;
  options.same_batch = true;
  const StepsResult result = run_steps(tied_moe_graph(2), options);
  EXPECT_LT(result.losses.back(), 0.5f * result.losses.front());
}

TEST(GoldenTraining, GivesEqualBitsUnderEveryPlannerAndWithoutOptionalPasses) {
  using enum lower::Precision;
  for (const char* kernels : {"ref", ""})
    for (auto precision : {kFp32, kBf16, kFp16, kMixed}) {
      SCOPED_TRACE(std::string(kernels) + " precision " +
                   std::to_string(static_cast<int>(precision)));
      StepsOptions options = ref_options();
      options.end_step = 5;
      options.compile.only_kernels = kernels;
      options.compile.precision = precision;
      const StepsResult want = run_steps(tied_moe_graph(2), options);
      options.compile.trivial_planners = true;
      options.compile.disabled_passes = {"common_subexpression", "dead_code"};
      const StepsResult got = run_steps(tied_moe_graph(2), options);
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.states, want.states);
      EXPECT_LT(want.peak_bytes, got.peak_bytes);
    }
}

// One graph with the rows of the device and with those of `ref`, which round to fp16 alike. No call
// of the former is one of `ref`.
TEST(GoldenTraining, AgreesWithReferenceKernelsInFp16) {
  for (const auto precision : {lower::Precision::kFp16, lower::Precision::kMixed}) {
    StepsOptions options = ref_options();
    options.end_step = 8;
    options.compile.precision = precision;
    options.compile.optimizer.scales_loss = false;
    const StepsResult want = run_steps(tied_moe_graph(2), options);
    options.compile.only_kernels = "cpu";
    const StepsResult got = run_steps(tied_moe_graph(2), options);
    const DType dtype = precision == lower::Precision::kFp16 ? DType::kFloat16 : DType::kBFloat16;
    ASSERT_EQ(got.losses.size(), want.losses.size());
    for (std::size_t i = 0; i < got.losses.size(); ++i)
      EXPECT_LE(std::abs(got.losses[i] - want.losses[i]), loss_tolerance(want.losses[i], dtype))
          << "step " << i;
  }
}

// What a checkpoint would hold: other passes derive other states from the same ones.
std::map<std::string, std::vector<std::byte>> primary_states(const StepsResult& result) {
  std::map<std::string, std::vector<std::byte>> primary;
  for (const auto& [name, bytes] : result.states)
    if (!name.ends_with(".bf16") && name.find(".packed") == std::string::npos)
      primary[name] = bytes;
  return primary;
}

TEST(GoldenTraining, GivesEqualBitsWithWeightsPackedOrNot) {
  for (const char* kernels : {"ref", ""})
    for (auto precision : {lower::Precision::kFp32, lower::Precision::kBf16})
      for (bool is_tied : {false, true}) {
        StepsOptions options = ref_options();
        options.compile.only_kernels = kernels;
        options.compile.precision = precision;
        const StepsResult want = run_steps(moe_graph(2, is_tied), options);
        EXPECT_TRUE(want.states.contains("layers.0.experts.up.weight.packed_transposed"));
        // In fp32 a state in panels is its own packing; in bf16 its upper half is.
        EXPECT_FALSE(want.states.contains("layers.0.experts.up.weight.packed"));
        options.compile.disabled_passes = {"split_parameters"};
        const StepsResult whole = run_steps(moe_graph(2, is_tied), options);
        EXPECT_EQ(whole.states.contains("layers.0.experts.up.weight.packed"),
                  precision == lower::Precision::kBf16);
        EXPECT_EQ(whole.losses, want.losses);
        EXPECT_EQ(primary_states(whole), primary_states(want));
        options.compile.disabled_passes = {"panel_states"};
        const StepsResult rows = run_steps(moe_graph(2, is_tied), options);
        EXPECT_TRUE(rows.states.contains("layers.0.experts.up.weight.packed"));
        EXPECT_EQ(rows.losses, want.losses);
        EXPECT_EQ(primary_states(rows), primary_states(want));
        options.compile.disabled_passes = {"accumulate_in_gemm"};
        EXPECT_EQ(primary_states(run_steps(moe_graph(2, is_tied), options)), primary_states(want));
        options.compile.disabled_passes = {"fuse_optimizer"};
        EXPECT_EQ(run_steps(moe_graph(2, is_tied), options).states, want.states);
        options.compile.pack_transposed = false;
        const StepsResult half = run_steps(moe_graph(2, is_tied), options);
        options.compile.disabled_passes = {"pack_weights"};
        const StepsResult got = run_steps(moe_graph(2, is_tied), options);
        EXPECT_EQ(half.losses, want.losses);
        EXPECT_EQ(primary_states(half), primary_states(want));
        EXPECT_EQ(got.losses, want.losses);
        EXPECT_EQ(primary_states(got), primary_states(want));
        EXPECT_FALSE(primary_states(want).empty());
      }
}

TEST(GoldenTraining, SumsSquaresInProductsWhereAStepHasOneMicroBatch) {
  const auto num_products_with_squares = [](std::int64_t micro_batches) {
    lower::CompileOptions options;
    options.micro_batches = micro_batches;
    const lower::Compiled compiled =
        lower::compile(tied_moe_graph(2), options, device::describe_cpu(2));
    return std::count_if(
        compiled.graph.nodes.begin(), compiled.graph.nodes.end(),
        [](const ir::Node& node) { return node.op->name.ends_with("_gradient_squares"); });
  };
  EXPECT_GT(num_products_with_squares(1), num_products_with_squares(2));
}

TEST(GoldenTraining, PlansLessMemoryWithoutTransposedPackings) {
  StepsOptions options;
  const auto planned_bytes = [&](bool pack_transposed) {
    options.compile.pack_transposed = pack_transposed;
    return lower::compile(tied_moe_graph(2), options.compile, device::describe_cpu(2))
        .plan.peak_bytes();
  };
  EXPECT_LT(planned_bytes(false), planned_bytes(true));
}

// The last node of the order may not take over an output that it reads.
TEST(GoldenTraining, PlansAForwardProgramWhoseLastNodeReadsAnOutput) {
  for (auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
    lower::CompileOptions options;
    options.precision = precision;
    options.training = false;
    EXPECT_NO_THROW(lower::compile(tied_moe_graph(2), options, device::describe_cpu(1)));
  }
}

TEST(GoldenTraining, GivesEqualBitsOnEveryThreadCount) {
  StepsOptions options = ref_options();
  options.compile.only_kernels.clear();
  const StepsResult want = run_steps(tied_moe_graph(2), options);
  options.num_threads = 3;
  EXPECT_EQ(run_steps(tied_moe_graph(2), options).states, want.states);
}

// With no update, the gradients of step 1 are those of a run that begins there, unless step 0 left
// something behind. Step 0 sees many tokens and experts, step 1 token 0 alone.
TEST(Gradients, KeepNothingOfTheStepBefore) {
  for (bool is_tied : {false, true})
    for (bool poison : {false, true})
      for (bool trivial : {false, true}) {
        StepsOptions options = ref_options();
        options.executor.poison = poison;
        options.compile.trivial_planners = trivial;
        options.compile.with_update = false;
        options.num_tokens_used = 1;
        const StepsResult got = run_steps(moe_graph(2, is_tied), options);
        options.begin_step = 1;
        const StepsResult want = run_steps(moe_graph(2, is_tied), options);
        EXPECT_EQ(got.gradients, want.gradients);
      }
}

TEST(Gradients, AreZeroForEmbeddingRowsOfUnseenTokens) {
  StepsOptions options = ref_options();
  options.compile.with_update = false;
  options.num_tokens_used = 1;  // after a step that uses many
  const StepsResult result = run_steps(moe_graph(1, false), options);
  const auto& rows = result.float_gradients.at("gradients.embedding.weight");
  const std::size_t width = rows.size() / kVocabulary;
  const auto is_zero = [](float value) { return value == 0; };
  EXPECT_FALSE(
      std::all_of(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(width), is_zero));
  EXPECT_TRUE(std::all_of(rows.begin() + static_cast<std::ptrdiff_t>(width), rows.end(), is_zero));
}

TEST(Gradients, AreZeroForExpertsWithoutRows) {
  StepsOptions options = ref_options();
  options.compile.with_update = false;
  options.num_tokens_used = 1;  // every token takes the same two of five experts
  const StepsResult result = run_steps(tied_moe_graph(1), options);
  const auto& gate = result.float_gradients.at("gradients.layers.0.experts.gate.weight");
  const std::size_t expert_size = gate.size() / 5;
  int num_used = 0;
  for (std::size_t i = 0; i < 5; ++i)
    num_used += !std::all_of(&gate[i * expert_size], &gate[i * expert_size] + expert_size,
                             [](float value) { return value == 0; });
  EXPECT_EQ(num_used, 2);
}

TEST(Gradients, AddUpOverMicroBatches) {
  StepsOptions options = ref_options();
  options.compile.with_update = false;
  options.end_step = 1;
  const auto both = run_steps(tied_moe_graph(1), options).float_gradients;
  options.end_micro_batch = 1;
  const auto first = run_steps(tied_moe_graph(1), options).float_gradients;
  options.begin_micro_batch = 1;
  options.end_micro_batch = 2;
  const auto second = run_steps(tied_moe_graph(1), options).float_gradients;
  for (const auto& [name, values] : both) {
    SCOPED_TRACE(name);
    double largest = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      largest =
          std::max<double>(largest, std::abs(first.at(name)[i]) + std::abs(second.at(name)[i]));
    EXPECT_GT(largest, 0);
    // Into one element go at most a product's sum and a row a token, in each micro-batch.
    const double bound = largest * gamma(2 * (kNumTokens + 1), DType::kFloat32);
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_LE(std::abs(double{values[i]} - first.at(name)[i] - second.at(name)[i]), bound) << i;
  }
}

TEST(FuseNormResidual, GivesTheBitsOfTheSeparateOps) {
  for (const char* kernels : {"ref", ""})
    for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
      StepsOptions options = ref_options();
      options.end_step = 3;
      options.compile.only_kernels = kernels;
      options.compile.precision = precision;
      const StepsResult fused = run_steps(tied_moe_graph(2), options);
      options.compile.disabled_passes = {"fuse_norm_residual"};
      const StepsResult separate = run_steps(tied_moe_graph(2), options);
      EXPECT_EQ(fused.losses, separate.losses);
      EXPECT_EQ(fused.states, separate.states);
    }
}

TEST(FuseActivationAndPermute, GiveTheBitsOfTheSeparateOps) {
  for (const char* kernels : {"ref", ""})
    for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
      StepsOptions options = ref_options();
      options.end_step = 3;
      options.compile.only_kernels = kernels;
      options.compile.precision = precision;
      auto& disabled = options.compile.disabled_passes;
      disabled = {"move_router_weight", "fuse_activation", "fuse_moe_permute"};
      const StepsResult separate = run_steps(tied_moe_graph(2), options);
      const StepsResult dense = run_steps(random_graph(3), options);
      for (const char* fused : {"fuse_activation", "fuse_moe_permute", ""}) {
        SCOPED_TRACE(fused);
        disabled = {"move_router_weight", "fuse_activation", "fuse_moe_permute"};
        disabled.erase(fused);
        if (*fused == 0) disabled = {"move_router_weight"};
        const StepsResult got = run_steps(tied_moe_graph(2), options);
        EXPECT_EQ(got.losses, separate.losses);
        EXPECT_EQ(got.states, separate.states);
        EXPECT_EQ(run_steps(random_graph(3), options).states, dense.states);
      }
    }
}

// Every activation, with a gate and without, takes the fused forms: the kernels of a bf16 step.
TEST(Activations, OfExpertsRunInTheirProducts) {
  for (const spec::ActivationRow& row : spec::activation_rows()) {
    SCOPED_TRACE(row.name);
    lower::CompileOptions options;
    options.precision = lower::Precision::kBf16;
    const lower::Compiled compiled =
        lower::compile(moe_graph(1, false, row.name), options, device::describe_cpu(1));
    std::set<std::string_view> ops;
    for (const ir::Node& node : compiled.graph.nodes) ops.insert(node.op->name);
    EXPECT_TRUE(ops.contains("grouped_linear_activation_with_products"));
    EXPECT_TRUE(ops.contains("grouped_linear_activation_gradient_with_weights"));
    EXPECT_FALSE(ops.contains("activation"));
    EXPECT_FALSE(ops.contains("activation_gradient"));
    EXPECT_FALSE(ops.contains("permute"));
    for (const runtime::Call& call : compiled.program.calls)
      EXPECT_FALSE(call.kernel->name.starts_with("ref:linear_activation") ||
                   call.kernel->name.starts_with("ref:grouped_linear_activation"))
          << call.kernel->name;
  }
}

TEST(Activations, OfExpertsTrainWithTheBitsOfTheOpsApart) {
  for (const spec::ActivationRow& row : spec::activation_rows())
    for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
      SCOPED_TRACE(row.name);
      const ir::Graph graph = moe_graph(2, false, row.name);
      StepsOptions options = ref_options();
      options.end_step = 40;
      options.same_batch = true;
      options.compile.only_kernels = "";
      options.compile.precision = precision;
      options.compile.disabled_passes = {"move_router_weight"};
      const StepsResult fused = run_steps(graph, options);
      options.compile.disabled_passes = {"move_router_weight", "fuse_activation",
                                         "fuse_moe_permute"};
      const StepsResult apart = run_steps(graph, options);
      EXPECT_EQ(fused.losses, apart.losses);
      EXPECT_EQ(fused.states, apart.states);
      EXPECT_LT(fused.losses.back(), 0.7 * fused.losses.front());
    }
}

// As for activations above: kernels, fusions, and what the backward recomputes.
TEST(BiasesOfExperts, TrainInTheFusedProductsWithTheBitsOfTheOpsApart) {
  const ir::Graph graph = moe_graph(2, false, "swiglu_clamped", true);
  for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
    StepsOptions options = ref_options();
    options.end_step = 20;
    options.same_batch = true;
    options.compile.only_kernels = "";
    options.compile.precision = precision;
    const lower::Compiled compiled =
        lower::compile(graph, options.compile, device::describe_cpu(1));
    std::set<std::string_view> ops;
    for (const ir::Node& node : compiled.graph.nodes) ops.insert(node.op->name);
    EXPECT_TRUE(ops.contains("grouped_linear_activation_with_products"));
    EXPECT_TRUE(ops.contains("grouped_linear_activation_gradient_with_weights"));
    EXPECT_FALSE(ops.contains("permute") || ops.contains("unpermute"));
    for (const runtime::Call& call : compiled.program.calls)
      EXPECT_FALSE(call.kernel->name.starts_with("ref:")) << call.kernel->name;
    options.compile.disabled_passes = {"move_router_weight"};
    const StepsResult fused = run_steps(graph, options);
    options.compile.disabled_passes = {"move_router_weight", "fuse_activation", "fuse_moe_permute"};
    const StepsResult apart = run_steps(graph, options);
    EXPECT_EQ(fused.losses, apart.losses);
    EXPECT_EQ(fused.states, apart.states);
    EXPECT_LT(fused.losses.back(), 0.9 * fused.losses.front());
  }
}

TEST(BiasesOfExperts, StayWithinTheBoundsWhereTheRoutersWeightMoves) {
  const ir::Graph graph = moe_graph(2, false, "swiglu_clamped", true);
  for (const char* kernels : {"ref", ""})
    for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
      StepsOptions options = ref_options();
      options.end_step = 1;
      options.compile.only_kernels = kernels;
      options.compile.precision = precision;
      options.compile.with_update = false;
      const StepsResult moved = run_steps(graph, options);
      options.num_threads = 3;
      EXPECT_EQ(run_steps(graph, options).gradients, moved.gradients);
      options.num_threads = 1;
      options.compile.disabled_passes = {"move_router_weight"};
      const StepsResult separate = run_steps(graph, options);
      EXPECT_NE(moved.gradients, separate.gradients);
      expect_gradients_as_near(graph, options, moved, separate,
                               parity_bounds(2, 8, DType::kFloat32).gradient);
    }
}

// Whole steps stay as near as another implementation may be: the pass rounds in other places.
TEST(MoveRouterWeight, StaysWithinTheBoundsOfAnotherOrderOfRoundings) {
  for (const char* kernels : {"ref", ""})
    for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
      const DType dtype = precision == lower::Precision::kBf16 ? DType::kBFloat16 : DType::kFloat32;
      SCOPED_TRACE(std::string(kernels) + " " + std::string(to_string(dtype)));
      StepsOptions options = ref_options();
      options.end_step = 1;
      options.compile.only_kernels = kernels;
      options.compile.precision = precision;
      options.compile.with_update = false;
      const StepsResult moved = run_steps(moe_graph(2, false), options);
      options.num_threads = 3;
      EXPECT_EQ(run_steps(moe_graph(2, false), options).gradients, moved.gradients);
      options.compile.disabled_passes = {"move_router_weight"};
      const StepsResult separate = run_steps(moe_graph(2, false), options);
      EXPECT_NE(moved.gradients, separate.gradients);
      const ParityBounds bounds = parity_bounds(2, 8, dtype);
      EXPECT_LE(std::abs(moved.losses[0] - separate.losses[0]),
                2 * bounds.logits * (1 + std::abs(separate.losses[0])));
      expect_gradients_as_near(moe_graph(2, false), options, moved, separate,
                               parity_bounds(2, 8, DType::kFloat32).gradient);
    }
}

TEST(FuseHeadLoss, GivesLossAndGradientsOfTheSeparateOps) {
  for (const bool is_tied : {false, true})
    for (const char* kernels : {"ref", ""})
      for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
        SCOPED_TRACE(std::string(kernels) +
                     (precision == lower::Precision::kBf16 ? " bf16" : " fp32"));
        StepsOptions options = ref_options();
        options.end_step = 1;
        options.compile.only_kernels = kernels;
        options.compile.precision = precision;
        options.compile.with_update = false;
        const StepsResult fused = run_steps(moe_graph(2, is_tied), options);
        options.compile.disabled_passes = {"fuse_head_loss"};
        const StepsResult separate = run_steps(moe_graph(2, is_tied), options);
        EXPECT_LE(std::abs(fused.losses[0] - separate.losses[0]),
                  agreement_tolerance(separate.losses[0], DType::kFloat32));
        expect_gradients_as_near(moe_graph(2, is_tied), options, fused, separate,
                                 parity_bounds(2, 8, DType::kFloat32).gradient);
      }
}

}  // namespace
}  // namespace anabatic::testing
