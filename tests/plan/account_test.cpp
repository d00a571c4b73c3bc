// SPDX-License-Identifier: Apache-2.0
// The tables of a plan sum to its peak, and say of every byte what it is for.
#include "plan/account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "device/topology.h"
#include "ir/op_schema.h"
#include "plan/offsets.h"
#include "plan/training_fixture.h"

namespace anabatic::testing {
namespace {

using plan::Account;
using plan::PlannedBuffer;
using plan::PlannedNode;
using plan::Use;

template <class Map>
std::int64_t sum(const Map& map) {
  std::int64_t total = 0;
  for (const auto& [key, bytes] : map) total += bytes;
  return total;
}

std::int64_t sum(const std::vector<plan::AccountRow>& rows) {
  std::int64_t total = 0;
  for (const plan::AccountRow& row : rows) total += row.bytes;
  return total;
}

struct Case {
  lower::Precision precision;
  bool is_trivial;
};

lower::Compiled compile(const Case& c) {
  lower::CompileOptions options;
  options.precision = c.precision;
  options.trivial_planners = c.is_trivial;
  return lower::compile(tied_moe_graph(3), options, device::describe_cpu(2));
}

std::vector<const PlannedNode*> nodes_of(const plan::Plan& plan) {
  std::vector<const PlannedNode*> nodes;
  for (const auto& [action, order] : plan.orders)
    for (const PlannedNode& node : order) nodes.push_back(&node);
  return nodes;
}

bool is_in_use(const PlannedBuffer& buffer, std::int32_t position) {
  return buffer.arena != spec::Arena::kFrame ||
         (buffer.lifetime.begin <= position && position < buffer.lifetime.end);
}

// Planned bytes that something occupies at a position, from the buffers one by one.
std::int64_t bytes_in_use(const plan::Plan& plan, std::int32_t position) {
  std::int64_t bytes =
      plan::align_bytes(nodes_of(plan)[static_cast<std::size_t>(position)]->workspace_bytes);
  for (const PlannedBuffer& buffer : plan.buffers)
    if (is_in_use(buffer, position)) bytes += plan::align_bytes(buffer.bytes);
  return bytes;
}

// Buffers that hold, when forward ends, a value that backward reads; bytes by the layer of the
// value's maker.
std::map<std::int32_t, std::int64_t> saved_by_layer(const lower::Compiled& compiled) {
  const ir::Graph& graph = compiled.graph;
  std::map<ir::ValueId, std::int32_t> layer_of_value;
  for (const PlannedNode& planned : compiled.plan.orders.at(spec::Action::kForward))
    for (const ir::ValueId output : graph.node(planned.node).outputs)
      layer_of_value[output] = graph.node(planned.node).tag.layer;
  std::set<ir::ValueId> read;
  for (const PlannedNode& planned : compiled.plan.orders.at(spec::Action::kBackward))
    for (const ir::ValueId input : graph.node(planned.node).inputs)
      if (layer_of_value.contains(input)) read.insert(input);
  std::map<std::int32_t, std::int64_t> bytes;
  for (const ir::ValueId value : read)
    if (compiled.plan.buffers[static_cast<std::size_t>(compiled.plan.buffer_of_value[index(value)])]
            .state < 0)
      bytes[layer_of_value[value]] += graph.value(value).type.num_bytes();
  return bytes;
}

class AccountOfPlan : public ::testing::TestWithParam<Case> {};

TEST_P(AccountOfPlan, SumsToThePlannedPeak) {
  const lower::Compiled compiled = compile(GetParam());
  const Account account = make_account(compiled.graph, compiled.plan);
  EXPECT_EQ(account.peak_bytes, compiled.plan.peak_bytes());
  EXPECT_EQ(sum(account.rows), account.peak_bytes);
  EXPECT_EQ(sum(account.by_layer), account.peak_bytes);
  EXPECT_EQ(sum(account.by_segment), account.peak_bytes);
  for (const plan::AccountRow& row : account.rows) EXPECT_GT(row.bytes, 0) << to_string(row.use);
}

TEST_P(AccountOfPlan, CountsStatesByKind) {
  const lower::Compiled compiled = compile(GetParam());
  const Account account = make_account(compiled.graph, compiled.plan);
  std::map<ir::StateKind, std::int64_t> want;
  for (const ir::State& state : compiled.graph.states) {
    const TensorType& type = compiled.graph.value(state.before).type;
    const bool is_lower = state.role == ir::StateRole::kLower;
    want[is_lower ? ir::StateKind::kParameter : state.kind()] +=
        plan::align_bytes(type.num_bytes());
  }
  EXPECT_EQ(account.bytes(Use::kParameters), want[ir::StateKind::kParameter]);
  EXPECT_EQ(account.bytes(Use::kOptimizer), want[ir::StateKind::kOptimizer]);
  EXPECT_EQ(account.bytes(Use::kPackings), want[ir::StateKind::kDerived]);
  EXPECT_EQ(account.bytes(Use::kGradients), want[ir::StateKind::kGradient]);
  EXPECT_EQ(account.bytes(Use::kInputs), compiled.plan.input_bytes);
}

TEST_P(AccountOfPlan, FindsThePeakThatACountOfBuffersFinds) {
  const lower::Compiled compiled = compile(GetParam());
  const Account account = make_account(compiled.graph, compiled.plan);
  const auto nodes = nodes_of(compiled.plan);
  const auto length = static_cast<std::int32_t>(nodes.size());
  const auto timeline = plan::timeline(compiled.graph, compiled.plan);
  ASSERT_EQ(timeline.size(), nodes.size());
  std::int64_t most = 0;
  for (std::int32_t i = 0; i < length; ++i) {
    const auto& row = timeline[static_cast<std::size_t>(i)];
    const std::int64_t want = bytes_in_use(compiled.plan, i);
    EXPECT_EQ(std::accumulate(row.begin(), row.end(), std::int64_t{0}), account.peak_bytes);
    EXPECT_EQ(account.peak_bytes - row[static_cast<std::size_t>(Use::kSlack)], want) << i;
    most = std::max(most, want);
  }
  EXPECT_EQ(bytes_in_use(compiled.plan, account.peak_position), most);
  EXPECT_EQ(account.peak_op, plan::node_label(compiled.graph.node(
                                 nodes[static_cast<std::size_t>(account.peak_position)]->node)));
  EXPECT_EQ(account.bytes(Use::kSlack), account.peak_bytes - most);
}

TEST_P(AccountOfPlan, SavesWhatForwardMakesAndBackwardReads) {
  const lower::Compiled compiled = compile(GetParam());
  EXPECT_EQ(make_account(compiled.graph, compiled.plan).saved_by_layer, saved_by_layer(compiled));
  // When forward is over, all of it is there.
  const std::size_t end_of_forward = compiled.plan.orders.at(spec::Action::kForward).size();
  const auto row = plan::timeline(compiled.graph, compiled.plan).at(end_of_forward);
  EXPECT_GE(row[static_cast<std::size_t>(Use::kSaved)], sum(saved_by_layer(compiled)));
}

TEST_P(AccountOfPlan, CountsAGradientThatLiesInTheFrameWhileItLives) {
  lower::Compiled compiled = compile(GetParam());
  const Account before = make_account(compiled.graph, compiled.plan);
  // One gradient moves after the frame, alive in the last call alone.
  const auto length = static_cast<std::int32_t>(nodes_of(compiled.plan).size());
  const auto moved = std::find_if(
      compiled.plan.buffers.begin(), compiled.plan.buffers.end(),
      [](const PlannedBuffer& buffer) { return buffer.arena == spec::Arena::kGradient; });
  ASSERT_NE(moved, compiled.plan.buffers.end());
  const std::int64_t bytes = plan::align_bytes(moved->bytes);
  moved->arena = spec::Arena::kFrame;
  moved->lifetime = {length - 1, length};
  moved->offset = compiled.plan.frame_bytes;
  compiled.plan.frame_bytes += bytes;
  compiled.plan.gradient_bytes -= bytes;
  const Account after = make_account(compiled.graph, compiled.plan);
  EXPECT_EQ(sum(after.rows), before.peak_bytes);
  EXPECT_NE(after.peak_position, length - 1);
  EXPECT_EQ(after.bytes(Use::kGradients), before.bytes(Use::kGradients) - bytes);
  EXPECT_EQ(after.bytes(Use::kSlack), before.bytes(Use::kSlack) + bytes);
  const auto timeline = plan::timeline(compiled.graph, compiled.plan);
  EXPECT_EQ(timeline.back()[static_cast<std::size_t>(Use::kGradients)],
            before.bytes(Use::kGradients));
}

TEST(Account, GivesMomentsToTheLayerOfTheirParameter) {
  const lower::Compiled compiled = compile({lower::Precision::kFp32, false});
  const Account account = make_account(compiled.graph, compiled.plan);
  std::int64_t states = 0;
  for (const ir::State& state : compiled.graph.states)
    if (text(state.name).find("layers.1.") != std::string_view::npos)
      states += plan::align_bytes(compiled.graph.value(state.before).type.num_bytes());
  EXPECT_GT(states, 0);
  EXPECT_GE(account.by_layer.at("layers.1"), states);
  EXPECT_EQ(account.by_segment.count("optimizer"), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, AccountOfPlan,
    ::testing::Values(Case{lower::Precision::kFp32, false}, Case{lower::Precision::kBf16, false},
                      Case{lower::Precision::kFp32, true}, Case{lower::Precision::kBf16, true}),
    [](const auto& one) {
      return std::string(one.param.precision == lower::Precision::kBf16 ? "Bf16" : "Fp32") +
             (one.param.is_trivial ? "Trivial" : "");
    });

}  // namespace
}  // namespace anabatic::testing
