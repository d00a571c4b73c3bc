// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "ir/graph.h"
#include "ir/op_schema.h"
#include "unit/ir/fake_ops.h"
#include "unit/ir/random_graph.h"

namespace anabatic::ir {
namespace {

using ::testing::HasSubstr;

constexpr const char* kSample = R"(graph "sample"
  batch %0 "tokens": bf16[12,3]
  batch %1 "offsets": i32[5]
  step_input %2 "learning_rate": f32[]
  state %3 "weight": bf16[12,3]  parameter -> %9
  state %4 "weight.packed": bf16[12,3]@panel16x2  packing of "weight"
  %5 "h": bf16[12,3] = add(%0, %3)  forward layer=2 segment=experts
  %6: bf16[12,3], %7: bf16[12,3] = split(%5)  {epsilon=1e-06, list=[1,2], name="a b"}  backward_input
  %8: bf16[12,3] = grouped(%6, %1)  backward_weight segment="odd words"
  %9: bf16[12,3] = overwrite(%3, %7)  update
  %10 "loss": f32[] = sum(%5)  forward
  output %10
  objective %10
)";

std::string error_of(const std::string& text) {
  try {
    parse(text, find_fake_op);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(GraphText, PrintsWhatItParsed) { EXPECT_EQ(print(parse(kSample, find_fake_op)), kSample); }

TEST(GraphText, ParsesEveryField) {
  const Graph graph = parse(kSample, find_fake_op);
  EXPECT_EQ(graph.name, "sample");
  EXPECT_EQ(graph.batch.size(), 2u);
  EXPECT_EQ(graph.step_inputs.size(), 1u);
  const State* weight = graph.find_state(intern("weight"));
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->role, StateRole::kParameter);
  EXPECT_EQ(graph.node(graph.value(weight->after).producer).op->name, "overwrite");
  const State* packed = graph.find_state(intern("weight.packed"));
  ASSERT_NE(packed, nullptr);
  EXPECT_EQ(packed->role, StateRole::kPacking);
  EXPECT_EQ(packed->owner, intern("weight"));
  EXPECT_EQ(packed->after, packed->before);
  EXPECT_EQ(text(graph.value(packed->before).type.layout), "panel16x2");
  const Node& split = graph.nodes[1];
  EXPECT_EQ(spec::get_double(split.attributes, "epsilon"), 1e-6);
  EXPECT_EQ(split.tag.phase, Phase::kBackwardInput);
  EXPECT_EQ(graph.nodes[0].tag, (Tag{Phase::kForward, 2, intern("experts")}));
  EXPECT_EQ(text(graph.nodes[2].tag.segment), "odd words");
  EXPECT_EQ(graph.find_output("loss"), graph.objective);
  EXPECT_EQ(graph.find_output("perplexity"), std::nullopt);
}

TEST(GraphText, RoundTripsRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Graph graph = random_graph(seed);
    ASSERT_NO_THROW(verify(graph));
    const std::string once = print(graph);
    const Graph again = parse(once, find_fake_op);
    ASSERT_EQ(print(again), once);
    ASSERT_EQ(hash(again), hash(graph));
    ASSERT_LT(again.values.size(), graph.values.size());  // the dead value is not printed
  }
}

TEST(GraphText, NumbersNeedNoOrderAndCommentsAreSkipped) {
  EXPECT_EQ(print(parse("graph \"g\" # one\n batch %70 \"x\": f32[2]\n# two\n"
                        "%4 \"y\": f32[2] = add(%70,%70) forward output %4",
                        find_fake_op)),
            "graph \"g\"\n  batch %0 \"x\": f32[2]\n  %1 \"y\": f32[2] = add(%0, %0)  forward\n"
            "  output %1\n");
}

TEST(GraphText, KeepsValueNamesThatDifferFromTheState) {
  const std::string text = "graph \"g\"\n  state %0 \"x\" named \"weight\": f32[2]  cache\n";
  const std::string printed = "graph \"g\"\n  state %0 \"x\": f32[2] named \"weight\"  cache\n";
  EXPECT_THAT(error_of(text), HasSubstr("line 2, column 16: expected ':'"));
  EXPECT_EQ(print(parse(printed, find_fake_op)), printed);
}

TEST(GraphText, ErrorsNameLineAndColumn) {
  const std::string head = "graph \"g\"\n  batch %0 \"x\": f32[2]\n";
  EXPECT_THAT(error_of(""), HasSubstr("line 1, column 1: expected 'graph', got the end"));
  EXPECT_THAT(error_of(head + "  bath %1"), HasSubstr("line 3, column 3: expected 'batch', "));
  EXPECT_THAT(error_of(head + "  %1: f32[2] = ad(%0, %0)  forward"),
              HasSubstr("line 3, column 16: expected a known op, got 'ad'"));
  EXPECT_THAT(error_of(head + "  %1: f32[2] = add(%0, %7)  forward"),
              HasSubstr("line 3, column 24: expected a defined value, got %7"));
  EXPECT_THAT(error_of(head + "  %0: f32[2] = add(%0, %0)  forward"),
              HasSubstr("line 3, column 3: expected a new value, got %0 again"));
  EXPECT_THAT(error_of(head + "  %1: f33[2] = add(%0, %0)  forward"),
              HasSubstr("line 3, column 7: [tensor type] unknown dtype 'f33'"));
  EXPECT_THAT(error_of(head + "  %1: f32[2] = add(%0, %0)  later"),
              HasSubstr("line 3, column 29: expected a phase, got 'later'"));
  EXPECT_THAT(error_of(head + "  %1: f32[2] = add(%0, %0)  {a=1, a=2}  forward"),
              HasSubstr("line 3, column 35: expected each attribute once, got 'a' again"));
  EXPECT_THAT(error_of(head + "  %1: f32[2] = add(%0, %0)  {a=1.2.3}  forward"),
              HasSubstr("line 3, column 32: [attributes] expected a value, got '1.2.3'"));
  EXPECT_THAT(error_of(head + "  %1: f32[2] = add(%0, %1)  forward"),
              HasSubstr("expected an earlier value, got one of this node"));
  EXPECT_THAT(error_of(head + "  output %9"), HasSubstr("line 3, column 10"));
  EXPECT_THAT(error_of("graph \"g"), HasSubstr("line 1, column 7: expected a closing '\"'"));
}

TEST(GraphText, RefusesWhatTheVerifierRefuses) {
  EXPECT_THAT(error_of("graph \"g\" batch %0 \"x\": f32[2] %1: f32[3] = add(%0, %0) forward"),
              HasSubstr("[graph text] [verify] rule 'types inferred' at node 0 (add)"));
}

TEST(GraphText, PrintsBrokenGraphsToo) {
  Graph graph = parse(kSample, find_fake_op);
  graph.nodes[0].inputs[0] = ValueId{1000};
  graph.nodes[1].op = nullptr;
  EXPECT_THAT(print(graph), HasSubstr("add(%undefined, %3)"));
  EXPECT_THAT(print(graph), HasSubstr("= undefined(%5)"));
}

TEST(GraphHash, IgnoresDeadValuesAndIds) {
  const Graph graph = parse(kSample, find_fake_op);
  Graph padded = graph;
  padded.add_value(tensor_type(DType::kFloat64, {9}));
  EXPECT_EQ(hash(padded), hash(graph));
}

TEST(GraphHash, SeesEveryMeaningfulField) {
  const Graph graph = parse(kSample, find_fake_op);
  const auto differs = [&](auto&& change) {
    Graph changed = graph;
    change(changed);
    return hash(changed) != hash(graph);
  };
  EXPECT_TRUE(differs([](Graph& g) { g.nodes[0].tag.layer = 3; }));
  EXPECT_TRUE(differs([](Graph& g) { g.nodes[0].tag.phase = Phase::kUpdate; }));
  EXPECT_TRUE(differs([](Graph& g) { g.nodes[0].tag.segment = {}; }));
  EXPECT_TRUE(differs([](Graph& g) { g.nodes[1].attributes["epsilon"] = 1.1e-6; }));
  EXPECT_TRUE(differs([](Graph& g) { g.values[5].name = intern("g"); }));
  EXPECT_TRUE(differs([](Graph& g) { g.values[5].type.dtype = DType::kFloat16; }));
  EXPECT_TRUE(differs([](Graph& g) { std::swap(g.nodes[0].inputs[0], g.nodes[0].inputs[1]); }));
  EXPECT_TRUE(differs([](Graph& g) { g.states[0].role = StateRole::kCache; }));
  EXPECT_TRUE(differs([](Graph& g) { g.states[0].after = g.states[0].before; }));
  EXPECT_TRUE(differs([](Graph& g) { g.states[1].owner = intern("other"); }));
  EXPECT_TRUE(differs([](Graph& g) { g.states[1].rows = {0, 4, 8}; }));
  EXPECT_TRUE(differs([](Graph& g) { g.states[0].is_trainable = false; }));
  EXPECT_TRUE(differs([](Graph& g) { g.states[0].init.rule = spec::Init::Rule::kOnes; }));
  EXPECT_TRUE(differs([](Graph& g) { g.states[0].init.deviation = 0.5; }));
  EXPECT_TRUE(differs([](Graph& g) { g.states[0].init.zero_row = 2; }));
  EXPECT_TRUE(differs([](Graph& g) { g.objective.reset(); }));
  EXPECT_TRUE(differs([](Graph& g) { g.outputs.clear(); }));
  EXPECT_TRUE(differs([](Graph& g) { g.name = "other"; }));
}

}  // namespace
}  // namespace anabatic::ir
