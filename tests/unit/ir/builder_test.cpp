// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "ir/op_schema.h"
#include "ir/rewrite.h"
#include "unit/ir/fake_ops.h"

namespace anabatic::ir {
namespace {

using ::testing::ElementsAre;

const TensorType kMatrix = tensor_type(DType::kFloat32, {4, 2});

struct Built {
  Graph graph;
  GraphBuilder builder{graph, find_fake_op};
  ValueId x = builder.batch_input("x", kMatrix);
};

TEST(GraphBuilder, InfersTypesAndKeepsTheTag) {
  Built b;
  const Tag tag{.phase = Phase::kForward, .layer = 3, .segment = intern("mlp")};
  b.builder.set_tag(tag);
  const std::vector<ValueId> parts = b.builder.add("split", {b.x}, {{"axis", std::int64_t{1}}});
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(b.builder.type(parts[1]), kMatrix);
  EXPECT_EQ(b.graph.nodes[0].tag, tag);
  EXPECT_EQ(b.graph.value(parts[1]).producer, NodeId{0});
  EXPECT_EQ(spec::get_int(b.graph.nodes[0].attributes, "axis"), 1);
  const ValueId sum = b.builder.add1("add", {parts[0], parts[1]}, {}, "sum");
  EXPECT_EQ(text(b.graph.value(sum).name), "sum");
  EXPECT_NO_THROW(verify(b.graph));
}

TEST(GraphBuilder, StatesStayUntilAPassWritesThem) {
  Built b;
  const ValueId before = b.builder.state("weight", kMatrix, StateRole::kParameter);
  EXPECT_EQ(b.graph.find_state(intern("weight"))->after, before);
  EXPECT_EQ(b.graph.find_state(intern("bias")), nullptr);
  EXPECT_THROW(b.builder.state("weight", kMatrix, StateRole::kParameter), InvalidArgument);
}

TEST(GraphBuilder, RefusesWhatDoesNotFitAndLeavesTheGraphAsItWas) {
  Built b;
  const ValueId scalar = b.builder.step_input("rate", tensor_type(DType::kFloat32, {}));
  const std::string before = print(b.graph);
  EXPECT_THROW(b.builder.add("multiply", {b.x, b.x}), InvalidArgument);
  EXPECT_THROW(b.builder.add("add", {b.x}), InvalidArgument);
  EXPECT_THROW(b.builder.add("add", {b.x, scalar}), InvalidArgument);
  EXPECT_THROW(b.builder.add("add", {b.x, kNoValue}), InternalError);
  EXPECT_EQ(print(b.graph), before);
}

TEST(GraphBuilder, OutputsHaveOneNameEach) {
  Built b;
  const ValueId sum = b.builder.add1("sum", {b.x});
  b.builder.output(sum, "loss");
  EXPECT_EQ(b.graph.find_output("loss"), sum);
  EXPECT_THROW(b.builder.output(b.builder.add1("sum", {b.x}), "loss"), InvalidArgument);
  EXPECT_THROW(b.builder.output(sum, "total"), InvalidArgument);
  EXPECT_THROW(b.builder.output(b.x, "total"), InvalidArgument);  // an input keeps its name
  EXPECT_EQ(text(b.graph.value(b.x).name), "x");
}

TEST(Rewrite, KeepNodesRenumbersNodesAndValues) {
  Built b;
  b.builder.add("split", {b.x});
  const ValueId sum = b.builder.add1("sum", {b.x}, {}, "loss");
  b.graph.outputs.push_back(sum);
  keep_nodes(b.graph, {false, true});
  EXPECT_EQ(b.graph.values.size(), 2u);
  EXPECT_THAT(b.graph.outputs, ElementsAre(ValueId{1}));
  EXPECT_EQ(b.graph.value(ValueId{1}).producer, NodeId{0});
  EXPECT_NO_THROW(verify(b.graph));
}

TEST(Rewrite, KeepNodesRefusesReadersOfRemovedValues) {
  Built b;
  const std::vector<ValueId> parts = b.builder.add("split", {b.x});
  b.builder.add1("sum", {parts[0]});
  EXPECT_THROW(keep_nodes(b.graph, {false, true}), InternalError);
}

TEST(Rewrite, SortNodesPutsProducersFirstAndKeepsTheRest) {
  Built b;
  const ValueId a = b.builder.add1("add", {b.x, b.x});
  b.builder.add1("sum", {b.x});
  const ValueId c = b.builder.add1("add", {b.x, b.x});
  b.graph.nodes[0].inputs[1] = c;  // the first node now reads the last
  EXPECT_THROW(verify(b.graph), InternalError);
  sort_nodes(b.graph);
  EXPECT_NO_THROW(verify(b.graph));
  EXPECT_EQ(b.graph.nodes[0].op->name, "sum");
  EXPECT_EQ(b.graph.value(a).producer, NodeId{2});
  b.graph.node(b.graph.value(c).producer).inputs[0] = a;
  EXPECT_THROW(sort_nodes(b.graph), InternalError);
}

}  // namespace
}  // namespace anabatic::ir
