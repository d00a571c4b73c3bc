// SPDX-License-Identifier: Apache-2.0
// The planners one by one, and the verifier against planted faults.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "anabatic/error.h"
#include "base/philox.h"
#include "base/text.h"
#include "device/topology.h"
#include "ir/op_schema.h"
#include "lower/lower.h"
#include "ops/table.h"
#include "plan/offsets.h"
#include "plan/order.h"
#include "plan/training_fixture.h"

namespace anabatic::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const DType kF32 = DType::kFloat32;

std::vector<plan::LiveBytes> random_items(std::uint64_t seed, std::size_t count) {
  std::vector<plan::LiveBytes> items;
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = static_cast<std::int32_t>(random_below(seed, 1, i, 50));
    const auto length = static_cast<std::int32_t>(1 + random_below(seed, 2, i, 12));
    items.push_back(
        {{begin, begin + length}, static_cast<std::int64_t>(random_below(seed, 3, i, 5000))});
  }
  return items;
}

TEST(Offsets, KeepLiveBuffersApart) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const auto items = random_items(seed, 120);
    for (const plan::Placement& placement :
         {plan::place_by_size(items), plan::place_in_sequence(items)}) {
      for (std::size_t i = 0; i < items.size(); ++i) {
        EXPECT_EQ(placement.offsets[i] % 64, 0);
        EXPECT_LE(placement.offsets[i] + items[i].bytes, placement.bytes);
        for (std::size_t j = 0; j < i; ++j)
          if (items[i].lifetime.overlaps(items[j].lifetime)) {
            EXPECT_TRUE(placement.offsets[i] + items[i].bytes <= placement.offsets[j] ||
                        placement.offsets[j] + items[j].bytes <= placement.offsets[i]);
          }
      }
    }
    EXPECT_GE(plan::place_by_size(items).bytes, analysis::peak_live_bytes(items));
    EXPECT_LT(plan::place_by_size(items).bytes, plan::place_in_sequence(items).bytes);
  }
}

TEST(Offsets, KeepOffWhatIsFixed) {
  const std::vector<plan::LiveBytes> items{{{0, 2}, 128}, {{0, 4}, 64}, {{3, 4}, 64}};
  const std::vector<plan::FixedBytes> fixed{{{0, 4}, 64, 64}, {{1, 3}, 128, 128}};
  const std::vector<std::size_t> order{0, 1, 2};
  const plan::Placement placement = plan::place_in_order(items, order, nullptr, fixed);
  EXPECT_EQ(placement.offsets, (std::vector<std::int64_t>{256, 0, 128}));
  EXPECT_EQ(placement.bytes, 384);
}

TEST(Offsets, ReuseBytesOfTheDead) {
  const std::vector<plan::LiveBytes> items{{{0, 2}, 100}, {{1, 3}, 64}, {{2, 4}, 100}};
  const plan::Placement placement = plan::place_by_size(items);
  EXPECT_EQ(placement.offsets, (std::vector<std::int64_t>{0, 128, 0}));
  EXPECT_EQ(placement.bytes, 192);
}

// Two branches of which the second needs a state's old value that the first overwrites.
TEST(Order, PutsReadersOfAStateBeforeItsWriter) {
  ir::Graph graph;
  ir::GraphBuilder builder(graph, ops::find_op);
  const ir::ValueId cache =
      builder.state("cache", tensor_type(kF32, {4, 3}), ir::StateRole::kCache);
  const ir::ValueId rows = builder.batch_input("rows", tensor_type(kF32, {2, 3}));
  const ir::ValueId places = builder.batch_input("places", tensor_type(DType::kInt32, {2}));
  const ir::ValueId written = builder.add1("cache_write", {cache, rows, places});
  graph.states[0].after = written;
  builder.output(builder.add1("scale", {cache}, {{"factor", 2.0}}), "old");
  builder.output(builder.add1("scale", {written}, {{"factor", 2.0}}), "new");
  for (bool trivial : {false, true}) {
    const plan::Plan plan = plan::make_plan(graph, {}, {.trivial = trivial});
    const auto& order = plan.orders.at(spec::Action::kForward);
    ASSERT_EQ(order.size(), 3u);
    EXPECT_EQ(index(order[0].node), 1u);
    EXPECT_EQ(index(order[1].node), 0u);
  }
}

TEST(Order, RefusesAStateThatNeedsItsNewValueForItsOldOne) {
  ir::Graph graph;
  ir::GraphBuilder builder(graph, ops::find_op);
  const ir::ValueId cache =
      builder.state("cache", tensor_type(kF32, {4, 3}), ir::StateRole::kCache);
  const ir::ValueId rows = builder.batch_input("rows", tensor_type(kF32, {4, 3}));
  const ir::ValueId places = builder.batch_input("places", tensor_type(DType::kInt32, {4}));
  const ir::ValueId written = builder.add1("cache_write", {cache, rows, places});
  graph.states[0].after = written;
  builder.output(builder.add1("add", {written, cache}), "sum");
  EXPECT_THAT([&] { plan::make_plan(graph, {}); },
              ThrowsMessage<InternalError>(HasSubstr("depend on each other in a cycle")));
}

TEST(Order, FreesEarly) {
  // Two wide values that a narrow product each ends: one after the other needs half the bytes.
  ir::Graph graph;
  ir::GraphBuilder builder(graph, ops::find_op);
  const ir::ValueId x = builder.batch_input("x", tensor_type(kF32, {4, 256}));
  const ir::ValueId w = builder.state("w", tensor_type(kF32, {1, 256}), ir::StateRole::kParameter);
  const ir::ValueId a = builder.add1("scale", {x}, {{"factor", 2.0}});
  const ir::ValueId b = builder.add1("scale", {x}, {{"factor", 3.0}});
  builder.output(
      builder.add1("add", {builder.add1("linear", {a, w}), builder.add1("linear", {b, w})}), "y");
  const plan::Plan early = plan::make_plan(graph, {}, {.only_kernels = "ref"});
  const plan::Plan given = plan::make_plan(graph, {}, {.trivial = true, .only_kernels = "ref"});
  EXPECT_LT(early.frame_bytes, 4 * 256 * 4 + 1024);
  EXPECT_GE(given.frame_bytes, 2 * 4 * 256 * 4);
}

// An update in the backward waits for the input gradient, which reads the old weight. Before that,
// a gradient of experts, here far more than the activations, would be stored without need.
TEST(Order, PutsOffGradientsWhoseUpdatesWait) {
  lower::CompileOptions options;
  options.with_update = true;
  options.optimizer.in_backward = true;
  options.micro_batches = 1;
  const lower::Compiled compiled = lower::compile(moe_graph(3, false), options, {});
  const plan::StorageMap storages = plan::assign_storage(compiled.graph);
  const std::vector<std::int64_t> workspace_bytes(compiled.graph.nodes.size(), 0);
  const auto peak = [&](bool shortens_gradients) {
    const plan::Orders orders =
        plan::early_free_order(compiled.graph, storages, workspace_bytes, true, shortens_gradients);
    return plan::peak_frame_bytes(compiled.graph, storages, workspace_bytes, orders, true).all;
  };
  EXPECT_LT(peak(true), peak(false));
}

TEST(KernelSelection, ListsEveryCandidateWhenNoneIsLeft) {
  ir::Graph graph = random_graph(1);
  EXPECT_THAT([&] { plan::make_plan(graph, {}, {.only_kernels = "nothing"}); },
              ThrowsMessage<Unsupported>(HasSubstr("only nothing is asked for")));
}

TEST(KernelSelection, ExplainsEveryNode) {
  const ir::Graph graph = random_graph(1);
  std::vector<std::string> lines;
  plan::make_plan(graph, {}, {.only_kernels = "ref", .explanation = &lines});
  ASSERT_EQ(lines.size(), graph.nodes.size());
  for (const std::string& line : lines) EXPECT_THAT(line, HasSubstr("ref:"));
}

TEST(Plan, PrintsTheSameBytesEachTimeAndHashesDecisions) {
  lower::CompileOptions options;
  options.only_kernels = "ref";
  const lower::Compiled a = lower::compile(tied_moe_graph(1), options, {});
  const lower::Compiled b = lower::compile(tied_moe_graph(1), options, {});
  EXPECT_EQ(plan::print(a.graph, a.plan), plan::print(b.graph, b.plan));
  EXPECT_EQ(plan::hash(a.graph, a.plan), plan::hash(b.graph, b.plan));
  options.trivial_planners = true;
  const lower::Compiled c = lower::compile(tied_moe_graph(1), options, {});
  EXPECT_NE(plan::hash(a.graph, a.plan), plan::hash(c.graph, c.plan));
}

// After a meant change of the planner: copy the file that the message names over the golden one.
TEST(Plan, EqualsTheGoldenDump) {
  lower::CompileOptions options;
  options.only_kernels = "ref";
  const lower::Compiled compiled = lower::compile(tied_moe_graph(1), options, {});
  const std::string got = plan::print(compiled.graph, compiled.plan);
  const std::string path = std::string(ANABATIC_BINARY_DIR) + "/tied_moe.plan.txt";
  write_file_atomically(path, got);
  EXPECT_EQ(got,
            read_file(std::string(ANABATIC_SOURCE_DIR) + "/tests/plan/golden/tied_moe.plan.txt"))
      << "see " << path;
}

class PlantedFault : public ::testing::Test {
 protected:
  PlantedFault() : compiled_(lower::compile(tied_moe_graph(2), {.only_kernels = "ref"}, {})) {}

  void expect(const char* rule) {
    EXPECT_THAT([&] { plan::verify(compiled_.graph, compiled_.plan); },
                ThrowsMessage<InternalError>(HasSubstr(rule)));
  }
  plan::Plan& plan() { return compiled_.plan; }
  std::vector<plan::PlannedNode>& order(spec::Action action) { return plan().orders.at(action); }

  lower::Compiled compiled_;
};

// Moving any frame buffer onto another that lives at the same time must be seen. Returns what the
// verifier said of each.
std::vector<std::string> errors_of_overlaps(const ir::Graph& graph, const plan::Plan& good) {
  std::vector<std::string> errors;
  for (std::size_t i = 0; i < good.buffers.size(); ++i)
    for (std::size_t j = 0; j < good.buffers.size(); ++j) {
      const plan::PlannedBuffer &a = good.buffers[i], &b = good.buffers[j];
      if (i == j || a.arena != spec::Arena::kFrame || b.arena != spec::Arena::kFrame ||
          !a.lifetime.overlaps(b.lifetime) || b.offset + a.bytes > good.frame_bytes)
        continue;
      plan::Plan bad = good;
      bad.buffers[i].offset = b.offset;
      try {
        plan::verify(graph, bad);
        ADD_FAILURE() << i << " onto " << j;
      } catch (const InternalError& error) {
        errors.emplace_back(error.what());
      }
    }
  return errors;
}

TEST_F(PlantedFault, EveryOverlapOfTwoLiveBuffersIsFound) {
  EXPECT_GT(errors_of_overlaps(compiled_.graph, plan()).size(), 100u);
}

// Inputs and outputs of exchanges live until their await.
class ExchangeFault : public PlantedFault {
 protected:
  ExchangeFault() {
    compiled_ = lower::compile(
        moe_graph(1, true),
        {.with_update = false, .only_kernels = "ref", .mesh = {.data = 5, .expert = 5}}, {});
  }
};

TEST_F(ExchangeFault, EveryOverlapOfTwoLiveBuffersIsFound) {
  const std::vector<std::string> errors = errors_of_overlaps(compiled_.graph, plan());
  EXPECT_GT(errors.size(), 100u);
  EXPECT_THAT(errors, Contains(HasSubstr("is overwritten while ranks read it")));
  EXPECT_THAT(errors, Contains(HasSubstr("is overwritten while ranks exchange it")));
}

TEST_F(ExchangeFault, APostThatIsLeftOutIsFound) {
  plan().exchanges.pop_back();
  expect("an exchange for every node without a call");
}

TEST_F(PlantedFault, AReaderAheadOfItsProducerIsFound) {
  auto& forward = order(spec::Action::kForward);
  std::reverse(forward.begin(), forward.end());
  expect("topological");
}

TEST_F(PlantedFault, AMissingNodeIsFound) {
  order(spec::Action::kBackward).pop_back();
  expect("every node exactly once");
}

TEST_F(PlantedFault, ANodeTwiceIsFound) {
  auto& forward = order(spec::Action::kForward);
  forward.push_back(forward.front());
  expect("every node exactly once");
}

TEST_F(PlantedFault, AWrongModeIsFound) {
  for (plan::PlannedNode& node : order(spec::Action::kBackward))
    if (node.modes[0] == plan::WriteMode::kFirstAssigns) {
      node.modes[0] = plan::WriteMode::kAccumulate;
      return expect("write modes");
    }
  FAIL() << "no first writer";
}

TEST_F(PlantedFault, AZeroFillAheadOfASecondWriterIsFound) {
  // A second writer adds to what is there: zeroes before it would drop the first.
  auto& backward = order(spec::Action::kBackward);
  const auto touches = [&](const char* op) {
    return std::find_if(backward.begin(), backward.end(), [&](const plan::PlannedNode& node) {
      return compiled_.graph.node(node.node).op->name == op;
    });
  };
  ASSERT_NE(touches("embedding_weight_gradient"), backward.end());
  touches("embedding_weight_gradient")->zero_fill = plan::ZeroFill::kFirstMicroBatch;
  expect("zeroes");
}

TEST_F(PlantedFault, AnUpdateAheadOfAReaderIsFound) {
  auto& update = order(spec::Action::kUpdate);
  std::reverse(update.begin(), update.end());
  expect("topological");
}

TEST_F(PlantedFault, AnOperandOffThePlanIsFound) {
  compiled_.program.calls[2].outputs[0].offset += 64;
  EXPECT_THAT([&] { lower::verify(compiled_.graph, compiled_.plan, compiled_.program); },
              ThrowsMessage<InternalError>(HasSubstr("not at the planned address")));
}

TEST(Storage, RefusesContributionsThatCannotAdd) {
  ir::Graph graph;
  ir::GraphBuilder builder(graph, ops::find_op);
  const ir::ValueId x = builder.batch_input("x", tensor_type(kF32, {4}));
  builder.set_tag({.phase = ir::Phase::kBackwardWeight});
  builder.state("w", tensor_type(kF32, {4}), ir::StateRole::kParameter);
  const ir::ValueId before =
      builder.state_of(intern("w"), ir::StateRole::kGradient, tensor_type(kF32, {4}));
  const ir::ValueId c = builder.add1("scale", {x}, {{"factor", 2.0}});
  graph.states[1].after = builder.add1("accumulate", {before, c});
  EXPECT_THAT([&] { plan::make_plan(graph, {}); },
              ThrowsMessage<InternalError>(HasSubstr("add in place")));
}

// y = scale(add(scale(x), x)): all three nodes work in the caller's bytes of y.
ir::Graph graph_of_operands() {
  ir::Graph graph;
  ir::GraphBuilder builder(graph, ops::find_op);
  const ir::ValueId x = builder.batch_input("x", tensor_type(kF32, {100, 7}));
  builder.batch_input("nothing", tensor_type(kF32, {0, 7}));
  const ir::ValueId a = builder.add1("scale", {x}, {{"factor", 2.0}});
  builder.output(builder.add1("scale", {a}, {{"factor", 3.0}}), "a");
  builder.output(builder.add1("add", {a, x}), "y");
  return graph;
}

TEST(ExternalOperands, AreWrittenInPlaceAndSharedWithNothing) {
  const ir::Graph graph = graph_of_operands();
  const plan::Plan plan =
      plan::make_plan(graph, {}, {.only_kernels = "ref", .external_operands = true});
  EXPECT_EQ(plan.input_bytes, 0);
  EXPECT_EQ(plan.frame_bytes, 0);  // `a` becomes `y` in the bytes of the caller
  EXPECT_EQ(plan.external_bytes, 3 * 2816 + 64);
  const runtime::Program program = lower::lower(graph, plan, {});
  EXPECT_EQ(program.num_external_inputs, 2);
  ASSERT_EQ(program.externals.size(), 4u);
  std::set<std::int64_t> offsets;
  for (const runtime::NamedOperand& operand : program.externals) {
    EXPECT_EQ(operand.operand.arena, spec::Arena::kExternal);
    offsets.insert(operand.operand.offset);
  }
  EXPECT_EQ(offsets.size(), 4u);
  EXPECT_EQ(program.externals[0].name, "x");
  EXPECT_EQ(program.externals[3].name, "y");
  EXPECT_THAT(runtime::print(program), HasSubstr("input x external+0 f32[100,7]"));
}

TEST(ExternalOperands, FromATrivialPlanAreOperandsToo) {
  const ir::Graph graph = graph_of_operands();
  const plan::Plan plan = plan::make_plan(
      graph, {}, {.trivial = true, .only_kernels = "ref", .external_operands = true});
  EXPECT_EQ(plan.frame_bytes, 2816);
  EXPECT_EQ(lower::lower(graph, plan, {}).externals.size(), 4u);
}

TEST(ExternalOperands, RefuseAnOutputThatIsAnInput) {
  ir::Graph graph = graph_of_operands();
  graph.outputs.push_back(graph.batch[0]);
  EXPECT_THAT(
      [&] { plan::make_plan(graph, {}, {.only_kernels = "ref", .external_operands = true}); },
      ThrowsMessage<InternalError>(HasSubstr("expected output x in bytes of its own")));
}

// Numbered as the pass after the last one would be.
std::filesystem::path decided_file(const std::filesystem::path& directory,
                                   const lower::Compiled& compiled) {
  return directory / fmt::format("{:02}_decided.ir", compiled.passes.size() + 1);
}

TEST(Dump, HoldsEveryArtifact) {
  const std::filesystem::path directory = std::filesystem::path(ANABATIC_BINARY_DIR) / "dump_test";
  std::filesystem::remove_all(directory);
  const lower::Compiled compiled = lower::compile(
      tied_moe_graph(1), {.only_kernels = "ref", .dump_directory = directory.string()}, {});
  EXPECT_EQ(read_file(directory / "plan.txt"), plan::print(compiled.graph, compiled.plan));
  EXPECT_EQ(read_file(directory / "program.txt"), runtime::print(compiled.program));
  EXPECT_TRUE(std::filesystem::exists(directory / "00_input.ir"));
  EXPECT_FALSE(std::filesystem::exists(decided_file(directory, compiled)));
}

TEST(Dump, HoldsTheGraphWithItsDecisionsAfterThePasses) {
  const std::filesystem::path directory = std::filesystem::path(ANABATIC_BINARY_DIR) / "dump_test";
  std::filesystem::remove_all(directory);
  const lower::Compiled compiled =
      lower::compile(tied_moe_graph(2),
                     {.dump_directory = directory.string(), .memory = {.recompute = {"experts"}}},
                     device::describe_cpu(1));
  ASSERT_FALSE(compiled.memory.choices.empty());
  const std::string text = read_file(decided_file(directory, compiled));
  EXPECT_EQ(text, ir::print(compiled.graph));
  EXPECT_THAT(text, HasSubstr("  recompute layer=0 segment=experts"));
}

}  // namespace
}  // namespace anabatic::testing
