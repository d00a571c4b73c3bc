// SPDX-License-Identifier: Apache-2.0
#include "analysis/cost_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/table.h"

namespace anabatic::analysis {
namespace {

// A forward product of 2·6·8·5 FLOPs in layer 0 and its weight-gradient of as many.
ir::Graph small_graph() {
  ir::Graph graph;
  ir::GraphBuilder builder(graph, ops::find_op);
  const ir::ValueId x = builder.batch_input("x", tensor_type(DType::kFloat32, {6, 8}));
  const ir::ValueId w =
      builder.state("w", tensor_type(DType::kFloat32, {5, 8}), ir::StateKind::kParameter);
  builder.set_tag({.layer = 0, .segment = intern("mlp")});
  const ir::ValueId y = builder.add1("linear", {x, w});
  builder.set_tag({.phase = ir::Phase::kBackwardWeight, .layer = 0, .segment = intern("mlp")});
  builder.add1("linear_weight_gradient", {x, y});
  return graph;
}

TEST(CostSummary, AddsUpByPhaseSegmentAndOp) {
  const CostSummary summary = summarize_cost(small_graph());
  constexpr std::int64_t kProduct = 2 * 6 * 8 * 5;
  EXPECT_EQ(summary.total.flops, 2 * kProduct);
  EXPECT_EQ(summary.total.bytes_written, 4 * (6 * 5 + 5 * 8));
  EXPECT_EQ(summary.by_phase.at("forward").flops, kProduct);
  EXPECT_EQ(summary.by_phase.at("backward_weight").flops, kProduct);
  EXPECT_EQ(summary.by_segment.at("mlp").flops, 2 * kProduct);
  EXPECT_EQ(summary.by_op.at("linear").bytes_read, 4 * (6 * 8 + 5 * 8));
  EXPECT_EQ(summary.by_op.size(), 2u);
}

TEST(CostSummary, PrintsOneLineARowAndTheTotal) {
  const std::string text = to_string(summarize_cost(small_graph()));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2 + 1 + 2 + 1);
  EXPECT_THAT(text, ::testing::HasSubstr("op       linear_weight_gradient"));
  EXPECT_THAT(text, ::testing::HasSubstr("total"));
}

TEST(CostSummary, OfAnEmptyGraphIsZero) {
  const CostSummary summary = summarize_cost(ir::Graph{});
  EXPECT_EQ(summary.total.flops, 0);
  EXPECT_TRUE(summary.by_op.empty());
}

}  // namespace
}  // namespace anabatic::analysis
