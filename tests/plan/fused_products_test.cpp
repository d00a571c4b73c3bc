// SPDX-License-Identifier: Apache-2.0
// Training steps of transformer blocks with their products and rotations joined, against the
// separate ops.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "analysis/rebuild.h"
#include "base/philox.h"
#include "device/topology.h"
#include "ops/table.h"
#include "plan/training_fixture.h"
#include "spec/rope.h"
#include "support/tolerance.h"

namespace anabatic::testing {
namespace {

using ir::ValueId;

constexpr std::int64_t kHidden = 8, kInner = 12, kHeads = 4, kKvHeads = 2, kHeadDim = 6;

struct BlockBuilder {
  ir::Graph graph;
  ir::GraphBuilder builder{graph, ops::find_op};
  ValueId table{}, key_begin{}, key_end{};

  void tag(const char* segment, int layer = -1) {
    builder.set_tag({.phase = ir::Phase::kForward, .layer = layer, .segment = intern(segment)});
  }
  ValueId parameter(const std::string& name, std::initializer_list<std::int64_t> shape) {
    return builder.state(name, tensor_type(DType::kFloat32, shape), ir::StateRole::kParameter);
  }
  ValueId norm(ValueId x, const std::string& name, std::int64_t width) {
    return builder.add1("rms_norm", {x, parameter(name, {width})}, {{"epsilon", 1e-6}});
  }
  ValueId linear(ValueId x, const std::string& name, std::int64_t out, std::int64_t in) {
    return builder.add1("linear", {x, parameter(name, {out, in})});
  }

  ValueId attention(ValueId x, int layer, bool has_qk_norm) {
    tag("attention", layer);
    const std::string prefix = fmt::format("layers.{}.attention", layer);
    const ValueId normed = norm(x, prefix + "_norm.weight", kHidden);
    ValueId q = linear(normed, prefix + ".q.weight", kHeads * kHeadDim, kHidden);
    ValueId k = linear(normed, prefix + ".k.weight", kKvHeads * kHeadDim, kHidden);
    const ValueId v = linear(normed, prefix + ".v.weight", kKvHeads * kHeadDim, kHidden);
    if (has_qk_norm) {
      q = norm(q, prefix + ".q_norm.weight", kHeadDim);
      k = norm(k, prefix + ".k_norm.weight", kHeadDim);
    }
    const spec::Attributes rotation{{"head_dim", kHeadDim}, {"inverse", false}};
    q = builder.add1("rope", {q, table}, rotation);
    k = builder.add1("rope", {k, table}, rotation);
    std::vector<ValueId> inputs{q, k, v, key_begin, key_end};
    if (layer % 2 == 1) inputs.push_back(parameter(prefix + ".sinks", {kHeads}));
    const ValueId out = builder.add("attention", std::move(inputs),
                                    {{"num_heads", kHeads},
                                     {"num_kv_heads", kKvHeads},
                                     {"scale", 0.4},
                                     {"window", std::int64_t{0}}})[0];
    return builder.add1("add", {x, linear(out, prefix + ".o.weight", kHidden, kHeads * kHeadDim)});
  }

  ValueId mlp(ValueId x, int layer) {
    tag("mlp", layer);
    const std::string prefix = fmt::format("layers.{}.mlp", layer);
    const ValueId normed = norm(x, prefix + "_norm.weight", kHidden);
    const ValueId gate = linear(normed, prefix + ".gate.weight", kInner, kHidden);
    const ValueId up = linear(normed, prefix + ".up.weight", kInner, kHidden);
    const ValueId inner = builder.add1("activation", {gate, up}, {{"activation", "swiglu"}});
    return builder.add1("add", {x, linear(inner, prefix + ".down.weight", kHidden, kInner)});
  }
};

// Every second layer has sinks.
ir::Graph block_graph(int num_layers, bool has_qk_norm) {
  BlockBuilder block;
  ir::GraphBuilder& builder = block.builder;
  block.tag("embedding");
  const ValueId tokens = builder.batch_input("tokens", tensor_type(DType::kInt32, {kNumTokens}));
  const ValueId positions =
      builder.batch_input("positions", tensor_type(DType::kInt32, {kNumTokens}));
  const ValueId labels = builder.batch_input("labels", tensor_type(DType::kInt32, {kNumTokens}));
  const ValueId scale = builder.step_input("inverse_tokens", tensor_type(DType::kFloat32, {}));
  builder.step_input("learning_rate", tensor_type(DType::kFloat32, {}));
  builder.step_input("step", tensor_type(DType::kInt32, {}));
  ValueId x = builder.add1("embedding",
                           {block.parameter("embedding.weight", {kVocabulary, kHidden}), tokens});
  spec::Rope rope;
  rope.rotary_dim = kHeadDim;
  block.table = builder.add1("rope_table", {positions}, spec::to_attributes(rope));
  const auto keys = [&](double value) {
    return builder.add1("fill", {},
                        {{"type", fmt::format("i32[{}]", kNumTokens)}, {"value", value}});
  };
  block.key_begin = keys(0);
  block.key_end = keys(kNumTokens);
  for (int layer = 0; layer < num_layers; ++layer)
    x = block.mlp(block.attention(x, layer, has_qk_norm), layer);
  block.tag("head");
  const ValueId logits = block.linear(x, "head.weight", kVocabulary, kHidden);
  block.tag("loss");
  const ValueId loss = builder.add("cross_entropy", {logits, labels, scale})[0];
  builder.output(loss, "loss");
  block.graph.objective = loss;
  return std::move(block.graph);
}

// Calls body(options) for ref and the chosen kernels, in fp32 and bf16. Gradients only.
template <class Body>
void for_precisions(Body&& body) {
  for (const char* kernels : {"ref", ""})
    for (const auto precision : {lower::Precision::kFp32, lower::Precision::kBf16}) {
      const DType dtype = precision == lower::Precision::kBf16 ? DType::kBFloat16 : DType::kFloat32;
      SCOPED_TRACE(std::string(kernels) + " " + std::string(to_string(dtype)));
      StepsOptions options;
      options.executor.poison = true;
      options.end_step = 1;
      options.compile.only_kernels = kernels;
      options.compile.precision = precision;
      options.compile.with_update = false;
      body(options, dtype);
    }
}

// The loss keeps its bits; a gradient is rounded elsewhere, once less.
void expect_close(const ir::Graph& graph, const char* pass, int num_layers) {
  for_precisions([&](StepsOptions options, DType) {
    const StepsResult joined = run_steps(graph, options);
    options.compile.disabled_passes = {pass};
    const StepsResult separate = run_steps(graph, options);
    EXPECT_EQ(joined.losses, separate.losses);
    expect_gradients_as_near(graph, options, joined, separate,
                             parity_bounds(num_layers, kHidden, DType::kFloat32).gradient);
  });
}

// With one layer, what the joined input-gradient does not reach keeps its bits, weight-gradients of
// the joined products among it, over two micro-batches.
void expect_equal_bits_but_for(const ir::Graph& graph, const char* pass,
                               const std::vector<std::string>& reached) {
  for_precisions([&](StepsOptions options, DType) {
    const StepsResult joined = run_steps(graph, options);
    options.compile.disabled_passes = {pass};
    const StepsResult separate = run_steps(graph, options);
    std::size_t num_equal = 0;
    for (const auto& [name, want] : separate.gradients) {
      const bool is_reached = std::any_of(reached.begin(), reached.end(), [&](const auto& part) {
        return name.find(part) != std::string::npos;
      });
      if (is_reached) continue;
      ++num_equal;
      EXPECT_EQ(joined.gradients.at(name), want) << name;
    }
    EXPECT_GT(num_equal, 3u);
  });
}

TEST(FuseNormLinear, GivesTheBitsOfTheSeparateOps) {
  const ir::Graph graph = block_graph(2, false);
  for_precisions([&](StepsOptions options, DType) {
    options.compile.norms_in_products = true;
    const StepsResult fused = run_steps(graph, options);
    options.compile.disabled_passes = {"fuse_norm_linear"};
    const StepsResult separate = run_steps(graph, options);
    EXPECT_EQ(fused.losses, separate.losses);
    EXPECT_EQ(fused.gradients, separate.gradients);
    EXPECT_LT(fused.peak_bytes, separate.peak_bytes);
  });
}

TEST(FuseGateUp, GivesTheLossAndGradientsOfTheSeparateOps) {
  expect_close(block_graph(2, false), "fuse_gate_up", 2);
  expect_close(tied_moe_graph(2), "fuse_gate_up", 2);
}

TEST(FuseGateUp, KeepsTheBitsOfWeightGradients) {
  expect_equal_bits_but_for(block_graph(1, false), "fuse_gate_up",
                            {"attention", "embedding", "mlp_norm"});
}

TEST(FuseQkv, GivesTheLossAndGradientsOfTheSeparateOps) {
  for (const bool has_qk_norm : {false, true})
    expect_close(block_graph(2, has_qk_norm), "fuse_qkv", 2);
}

TEST(FuseQkv, KeepsTheBitsOfWeightGradients) {
  expect_equal_bits_but_for(block_graph(1, true), "fuse_qkv", {"attention_norm", "embedding"});
}

TEST(FuseRope, GivesTheBitsOfTheSeparateOps) {
  for (const bool has_qk_norm : {false, true})
    for_precisions([&](StepsOptions options, DType) {
      options.end_step = 3;
      options.compile.with_update = true;
      const ir::Graph graph = block_graph(2, has_qk_norm);
      const StepsResult joined = run_steps(graph, options);
      options.compile.disabled_passes = {"fuse_rope"};
      const StepsResult separate = run_steps(graph, options);
      EXPECT_EQ(joined.losses, separate.losses);
      EXPECT_EQ(joined.states, separate.states);
    });
}

// Keys and values apart from queries, where no norms of heads join them.
TEST(FuseQkv, LeavesEqualBitsWhereSomeOfItsProductsAreMadeAgain) {
  for (const bool has_qk_norm : {false, true})
    for_precisions([&](StepsOptions options, DType) {
      options.compile.with_update = true;
      const ir::Graph graph = block_graph(2, has_qk_norm);
      const StepsResult want = run_steps(graph, options);
      const lower::Compiled whole = lower::compile(graph, options.compile, device::describe_cpu(1));
      std::vector<std::string> keys;
      const analysis::Rebuilder rebuilder(whole.graph);
      for (const analysis::SavedValue& saved : rebuilder.saved())
        if (saved.key.find("linear_many") != std::string::npos ||
            saved.key.find("rope_pair") != std::string::npos)
          keys.push_back(saved.key);
      ASSERT_EQ(keys.size(), has_qk_norm ? 10u : 6u);
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        options.compile.memory.recompute.clear();
        for (std::size_t i = 0; i < keys.size(); ++i)
          if (seed == 0 || random_below(seed, 0, i, 2) == 0)
            options.compile.memory.recompute.push_back(keys[i]);
        if (options.compile.memory.recompute.empty()) continue;
        const StepsResult got = run_steps(graph, options);
        EXPECT_EQ(got.losses, want.losses) << seed;
        EXPECT_EQ(got.states, want.states) << seed;
      }
    });
}

}  // namespace
}  // namespace anabatic::testing
