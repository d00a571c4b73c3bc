// SPDX-License-Identifier: Apache-2.0
// Predicted seconds against the roofline worked out by hand.
#include "plan/prices.h"

#include <gtest/gtest.h>

#include <cmath>

#include "device/topology.h"
#include "ops/table.h"
#include "plan/training_fixture.h"
#include "tensor/panels.h"

namespace anabatic::testing {
namespace {

std::int64_t picoseconds(double seconds) { return std::llround(1e12 * seconds); }

spec::DeviceSpec device() {
  spec::DeviceSpec device;
  device.num_threads = 2;
  device.fp32_flops_per_second = 1e9;
  device.bf16_flops_per_second = 4e9;
  device.int8_ops_per_second = 8e9;
  device.copy_bytes_per_second = 1e8;
  return device;
}

struct Product {
  ir::Graph graph;
  explicit Product(DType dtype, std::int64_t rows = 600, std::int64_t width = 800) {
    ir::GraphBuilder builder(graph, ops::find_op);
    const ir::ValueId x = builder.batch_input("x", tensor_type(dtype, {rows, width}));
    const ir::ValueId w =
        builder.state("w", tensor_type(dtype, {500, width}), ir::StateRole::kParameter);
    builder.add1("linear", {x, w});
  }
  const ir::Node& node() const { return graph.nodes[0]; }
};

TEST(Prices, DivideTheRoofByTheShare) {
  const double flops = 2.0 * 600 * 800 * 500;
  plan::OpEfficiency efficiency;
  efficiency.seconds_a_call = 0.25;
  efficiency.share_of_roof = {{"linear fp32", 0.5}, {"linear bf16", 2.0}};
  const Product fp32(DType::kFloat32), bf16(DType::kBFloat16);
  EXPECT_EQ(picoseconds(predicted_seconds(fp32.graph, fp32.node(), device(), efficiency)),
            picoseconds(0.25 + flops / 1e9 / 0.5));
  EXPECT_EQ(picoseconds(predicted_seconds(bf16.graph, bf16.node(), device(), efficiency)),
            picoseconds(0.25 + flops / 4e9 / 2.0));
  efficiency.fixed_seconds = {{"linear bf16", 0.5}};
  EXPECT_EQ(picoseconds(predicted_seconds(bf16.graph, bf16.node(), device(), efficiency)),
            picoseconds(0.5 + flops / 4e9 / 2.0));
  // Half as many weights.
  EXPECT_EQ(plan::weight_bytes(bf16.graph, bf16.node()), 2 * 500 * 800);
  efficiency.fixed_weight_bytes = {{"linear bf16", 500 * 800}};
  EXPECT_EQ(picoseconds(predicted_seconds(bf16.graph, bf16.node(), device(), efficiency)),
            picoseconds(2 * 0.5 + flops / 4e9 / 2.0));
}

TEST(Prices, OfInt8ProductsAreTheirOwn) {
  ir::Graph graph;
  ir::GraphBuilder builder(graph, ops::find_op);
  TensorType tiles = quantized(tensor_type(DType::kFloat32, {500, 800}), int8_tile_format());
  tiles.layout = panels_layout(false);
  const ir::ValueId x = builder.batch_input("x", tensor_type(DType::kBFloat16, {600, 800})),
                    dy = builder.batch_input("dy", tensor_type(DType::kBFloat16, {600, 500})),
                    w = builder.state("w", tiles, ir::StateRole::kPacking, intern("v"));
  builder.add1("linear", {x, w}, {{"fallback", std::int64_t{64}}});
  builder.add1("linear_weight_gradient", {x, dy}, {{"fallback", std::int64_t{64}}});
  EXPECT_EQ(plan::price_key(graph, graph.nodes[0]), "linear int8");
  EXPECT_EQ(plan::price_key(graph, graph.nodes[1]), "linear_weight_gradient_squares int8");
  EXPECT_EQ(plan::weight_bytes(graph, graph.nodes[0]), tiles.num_bytes());
  const Product bf16(DType::kBFloat16);
  const double slower = plan::roof_seconds(bf16.graph, bf16.node(), device(), {});
  for (const ir::Node& node : graph.nodes)
    EXPECT_LT(plan::roof_seconds(graph, node, device(), {}), slower);
  const ir::ValueId rows = builder.batch_input("rows", tensor_type(DType::kBFloat16, {500, 800})),
                    labels = builder.batch_input("labels", tensor_type(DType::kInt32, {600})),
                    scale = builder.batch_input("scale", tensor_type(DType::kFloat32, {}));
  builder.add("head_loss_with_gradient", {x, rows, labels, scale},
              {{"dloss", 1.0}, {"fallback", std::int64_t{64}}});
  EXPECT_EQ(plan::price_key(graph, graph.nodes[2]), "head_loss_with_gradient int8");
  EXPECT_LT(plan::roof_seconds(graph, graph.nodes[2], device(), {}), 3 * slower);
}

TEST(Prices, TakeTheBandwidthWhereItBinds) {
  const Product thin(DType::kFloat32, 1);
  const double bytes = 4.0 * (800 + 500 * 800 + 500);
  EXPECT_EQ(picoseconds(plan::roof_seconds(thin.graph, thin.node(), device(), {})),
            picoseconds(bytes / 1e8));
}

// Of 400 rows that may come from other ranks, 100 are expected.
TEST(Prices, OfRowsFromOtherRanksAreOfThoseExpected) {
  const auto seconds = [](std::int64_t rows, bool is_from_ranks) {
    ir::Graph graph;
    ir::GraphBuilder builder(graph, ops::find_op);
    const ir::ValueId x = builder.batch_input("x", tensor_type(DType::kFloat32, {rows, 80})),
                      w = builder.state("w", tensor_type(DType::kFloat32, {2, 50, 80}),
                                        ir::StateRole::kParameter),
                      routes = builder.batch_input("routes", tensor_type(DType::kInt32, {2, 5})),
                      offsets = builder.batch_input("offsets", tensor_type(DType::kInt32, {3}));
    const auto maps =
        builder.add("dispatch_map", {routes}, {{"member", 0}, {"rows", rows}, {"expected", 100}});
    builder.add1("grouped_linear", {x, w, is_from_ranks ? maps[2] : offsets});
    return picoseconds(
        predicted_seconds(graph, graph.nodes.back(), device(), plan::default_efficiency()));
  };
  EXPECT_EQ(seconds(400, true), seconds(100, false));
  EXPECT_LT(seconds(400, true), seconds(400, false));
}

TEST(Prices, CountAttentionWithinASequence) {
  ir::Graph graph;
  ir::GraphBuilder builder(graph, ops::find_op);
  const auto input = [&](const char* name, DType dtype, std::initializer_list<std::int64_t> shape) {
    return builder.batch_input(name, tensor_type(dtype, shape));
  };
  const ir::ValueId q = input("q", DType::kFloat32, {4096, 64}),
                    k = input("k", DType::kFloat32, {4096, 64}),
                    v = input("v", DType::kFloat32, {4096, 64}),
                    begin = input("begin", DType::kInt32, {4096}),
                    end = input("end", DType::kInt32, {4096});
  builder.add("attention", {q, k, v, begin, end},
              {{"num_heads", std::int64_t{2}},
               {"num_kv_heads", std::int64_t{2}},
               {"scale", 0.1},
               {"window", std::int64_t{0}}});
  // 2 FLOPs for each of 128 columns of q and v, per pair in blocks of 112.
  const auto flops = [](double rows, double length) {
    return 2 * 128 * rows / length * (length * (length + 112) / 2);
  };
  const ir::Node& node = graph.nodes[0];
  EXPECT_EQ(picoseconds(plan::roof_seconds(graph, node, device(), {})),
            picoseconds(flops(4096, 4096) / 1e9));
  plan::OpEfficiency efficiency;
  efficiency.sequence_length = 1024;
  EXPECT_EQ(picoseconds(plan::roof_seconds(graph, node, device(), efficiency)),
            picoseconds(flops(4096, 1024) / 1e9));
}

TEST(Prices, FillWhatWasNotMeasured) {
  spec::DeviceSpec bare;
  bare.num_threads = 3;
  const spec::DeviceSpec filled = plan::with_peaks(bare);
  EXPECT_GT(filled.fp32_flops_per_second, 0);
  EXPECT_EQ(filled.bf16_flops_per_second, filled.fp32_flops_per_second);
  EXPECT_GT(filled.copy_bytes_per_second, 0);
  const spec::DeviceSpec measured = plan::with_peaks(device());
  EXPECT_EQ(measured.fp32_flops_per_second, 1e9);
  EXPECT_EQ(measured.copy_bytes_per_second, 1e8);
}

TEST(Prices, OfAStepRepeatMicroBatchesButNotTheUpdate) {
  const lower::Compiled compiled = lower::compile(tied_moe_graph(2), {}, device::describe_cpu(1));
  const auto price = [&](std::int64_t micro_batches) {
    return plan::price_step(compiled.graph, compiled.plan, device(), {}, micro_batches);
  };
  double forward = 0, update = 0;
  for (const auto& [action, order] : compiled.plan.orders)
    for (const plan::PlannedNode& planned : order) {
      const double seconds = predicted_seconds(compiled.graph, compiled.graph.node(planned.node),
                                               device(), plan::OpEfficiency{});
      if (action == spec::Action::kForward) forward += seconds;
      if (action == spec::Action::kUpdate) update += seconds;
    }
  const plan::StepPrice one = price(1), three = price(3);
  EXPECT_GE(one.forward_seconds, forward);  // zero fills come on top
  EXPECT_LE(5 * one.forward_seconds, 6 * forward);
  EXPECT_EQ(picoseconds(one.update_seconds), picoseconds(update));
  EXPECT_EQ(picoseconds(three.update_seconds), picoseconds(update));
  EXPECT_EQ(picoseconds(three.forward_seconds), picoseconds(3 * one.forward_seconds));
  EXPECT_LE(three.backward_seconds, 3 * one.backward_seconds);
  EXPECT_GT(three.backward_seconds, 2 * one.backward_seconds);
  EXPECT_EQ(picoseconds(one.seconds),
            picoseconds(one.forward_seconds + one.backward_seconds + one.update_seconds));
}

TEST(Prices, OfAStepTakeItsFirstMicroBatchsOwn) {
  lower::CompileOptions options;
  options.micro_batches = 3;
  const lower::Compiled whole =
      lower::compile(moe_graph(2, false), options, device::describe_cpu(1));
  options.memory.recompute = {"experts"};
  lower::Compiled lean = lower::compile(moe_graph(2, false), options, device::describe_cpu(1));
  const auto price = [&](const lower::Compiled& compiled, std::int64_t micro_batches) {
    return search::price_step(compiled, device(), {}, micro_batches);
  };
  const plan::StepPrice alike = price(lean, 3), first = price(whole, 1), other = price(lean, 1);
  EXPECT_GT(other.backward_seconds, first.backward_seconds);
  lean.first = {whole.graph, whole.plan};
  const plan::StepPrice step = price(lean, 3);
  EXPECT_EQ(picoseconds(step.seconds), picoseconds(alike.seconds - other.seconds + first.seconds));
  EXPECT_EQ(picoseconds(step.backward_seconds),
            picoseconds(alike.backward_seconds - other.backward_seconds + first.backward_seconds));
  EXPECT_EQ(picoseconds(step.update_seconds), picoseconds(alike.update_seconds));
  EXPECT_LT(step.flops, alike.flops);
  EXPECT_EQ(picoseconds(price(lean, 1).seconds), picoseconds(other.seconds));
}

}  // namespace
}  // namespace anabatic::testing
