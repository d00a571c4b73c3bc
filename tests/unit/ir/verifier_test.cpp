// SPDX-License-Identifier: Apache-2.0
// Each rule is broken once in an otherwise sound graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "anabatic/error.h"
#include "ir/graph.h"
#include "ir/op_schema.h"
#include "unit/ir/fake_ops.h"

namespace anabatic::ir {
namespace {

using ::testing::HasSubstr;

// Values: 0 x, 1 offsets, 2 weight, 3 weight.copy, 4 h, 5 and 6 parts, 7 grouped, 8 new weight,
// 9 loss.
Graph sound() {
  return parse(R"(graph "sound"
    batch %0 "x": f32[4,2]
    batch %1 "offsets": i32[3]
    state %2 "weight": f32[4,2]  parameter -> %8
    state %3 "weight.copy": f32[4,2]  copy of "weight"
    %4 "h": f32[4,2] = add(%0, %2)  forward layer=0 segment=mlp
    %5: f32[4,2], %6: f32[4,2] = split(%4)  backward_input
    %7: f32[4,2] = grouped(%5, %1)  backward_weight
    %8: f32[4,2] = overwrite(%2, %6)  update
    %9 "loss": f32[] = sum(%4)  forward
    output %9
    objective %9)",
               find_fake_op);
}

template <class Break>
std::string refusal(Break&& break_it) {
  Graph graph = sound();
  break_it(graph);
  try {
    verify(graph);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "accepted";
}

ValueId id(std::uint32_t number) { return ValueId{number}; }

TEST(Verifier, AcceptsSoundGraphs) {
  EXPECT_EQ(refusal([](Graph&) {}), "accepted");
  EXPECT_NO_THROW(verify(Graph{}));
}

TEST(Verifier, NamesRuleNodeAndValue) {
  EXPECT_EQ(refusal([](Graph& g) { g.values[4].type.dtype = DType::kFloat64; }),
            "[verify] rule 'types inferred' at node 0 (add, \"h\"): output 0 is f64[4,2], its "
            "inputs give f32[4,2]");
}

TEST(Verifier, RefusesIdsOutOfRange) {
  const auto rule = HasSubstr("rule 'ids in range'");
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[0].inputs[0] = id(99); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[0].outputs[0] = kNoValue; }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.batch.push_back(id(99)); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.step_inputs.push_back(id(99)); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.states[0].before = id(99); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.states[0].after = id(99); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.outputs[0] = id(99); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.objective = id(99); }), rule);
}

TEST(Verifier, RefusesTwoDefinitions) {
  const auto rule = HasSubstr("rule 'defined once'");
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[1].outputs[1] = id(5); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.step_inputs.push_back(id(0)); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.states[1].before = id(2); }), rule);
}

TEST(Verifier, RefusesWrongProducers) {
  const auto rule = HasSubstr("rule 'producers match'");
  EXPECT_THAT(refusal([](Graph& g) { g.values[5].producer = NodeId{0}; }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.values[0].producer = NodeId{0}; }), rule);
}

TEST(Verifier, RefusesUnknownOpsAndWrongArity) {
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[0].op = nullptr; }), HasSubstr("rule 'ops known'"));
  const auto rule = HasSubstr("rule 'arity'");
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[0].inputs.pop_back(); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[0].inputs.push_back(id(0)); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[1].outputs.pop_back(); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[4].inputs.clear(); }), rule);
}

TEST(Verifier, RefusesReadsBeforeTheDefinition) {
  const auto rule = HasSubstr("rule 'topological order'");
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[0].inputs[0] = id(5); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.batch.erase(g.batch.begin()); }), rule);
}

TEST(Verifier, RefusesReadsFromALaterPhase) {
  const auto rule = HasSubstr("rule 'phases in order'");
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[1].tag.phase = Phase::kUpdate; }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[0].tag.phase = Phase::kBackwardInput; }), rule);
}

TEST(Verifier, RefusesUnsoundTags) {
  const auto rule = HasSubstr("rule 'tags are sound'");
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[4].tag.layer = -2; }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[3].tag.phase = static_cast<Phase>(9); }), rule);
}

TEST(Verifier, RefusesTypesThatInputsDoNotGive) {
  const auto rule = HasSubstr("rule 'types inferred'");
  EXPECT_THAT(refusal([](Graph& g) { g.values[9].type.shape.resize(1); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.values[8].type.layout = intern("packed"); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.values[0].type.shape[0] = 5; }),
              HasSubstr("[add] expected equal types"));
}

TEST(Verifier, RefusesUnsoundTypes) {
  const auto rule = HasSubstr("rule 'types are sound'");
  EXPECT_THAT(refusal([](Graph& g) { g.values[1].type.shape[0] = -1; }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.values[1].type.shape[0] = (1ll << 48) + 1; }), rule);
  EXPECT_THAT(refusal([](Graph& g) {
                g.values[1].type = tensor_type(DType::kInt32, {1ll << 40, 1ll << 40});
              }),
              rule);
  EXPECT_THAT(refusal([](Graph& g) { g.values[1].type.layout = intern("two words"); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.nodes[0].attributes["two words"] = true; }),
              HasSubstr("rule 'attributes are sound'"));
}

TEST(Verifier, RefusesUnpairedStates) {
  const auto rule = HasSubstr("rule 'states paired'");
  EXPECT_THAT(refusal([](Graph& g) { g.states[1].after = id(8); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.states[0].after = id(0); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.states[0].after = id(9); }), rule);
}

TEST(Verifier, RefusesUnnamedOrRepeatedNames) {
  EXPECT_THAT(refusal([](Graph& g) { g.states[1].name = g.states[0].name; }),
              HasSubstr("rule 'states named'"));
  EXPECT_THAT(refusal([](Graph& g) { g.values[0].name = {}; }), HasSubstr("rule 'inputs named'"));
  EXPECT_THAT(refusal([](Graph& g) { g.values[1].name = intern("x"); }),
              HasSubstr("rule 'inputs named'"));
  EXPECT_THAT(refusal([](Graph& g) { g.values[9].name = {}; }), HasSubstr("rule 'outputs named'"));
  EXPECT_THAT(refusal([](Graph& g) { g.outputs.push_back(id(9)); }),
              HasSubstr("rule 'outputs named'"));
}

TEST(Verifier, RefusesOwnersThatDoNotFitTheRole) {
  const auto rule = HasSubstr("rule 'states owned'");
  EXPECT_THAT(refusal([](Graph& g) { g.states[1].owner = {}; }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.states[1].owner = intern("nobody"); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.states[1].owner = g.states[1].name; }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.states[0].owner = g.states[1].name; }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.states[1].is_trainable = false; }), rule);
}

TEST(Verifier, RefusesRowsBeyondTheWhole) {
  const auto rule = HasSubstr("rule 'states' rows'");
  for (const spec::Rows rows : {spec::Rows{0, 4, 3}, spec::Rows{2, 2, 3}, spec::Rows{0, 0, 3},
                                spec::Rows{-1, 2, 3}, spec::Rows{1, 0, 0}, spec::Rows{3, 1, 3}})
    EXPECT_THAT(refusal([&](Graph& g) { g.states[1].rows = rows; }), rule);
}

TEST(Verifier, RefusesUndefinedResults) {
  const auto rule = HasSubstr("rule 'reads are defined'");
  const auto add_dead = [](Graph& g) {
    return g.add_value(tensor_type(DType::kFloat32, {}), intern("dead"));
  };
  EXPECT_THAT(refusal([&](Graph& g) { g.outputs.push_back(add_dead(g)); }), rule);
  EXPECT_THAT(refusal([&](Graph& g) { g.objective = add_dead(g); }), rule);
  EXPECT_THAT(refusal([&](Graph& g) { g.states[0].after = add_dead(g); }), rule);
  EXPECT_THAT(refusal([](Graph& g) { g.objective = id(4); }),
              HasSubstr("rule 'objective is a scalar'"));
}

// The old weight is read by a node that needs the new one: no order of these two is right.
TEST(Verifier, RefusesReadersOfAnOldValueBehindItsWriter) {
  EXPECT_THAT(refusal([](Graph& g) {
                GraphBuilder builder(g, find_fake_op);
                builder.set_tag({.phase = Phase::kUpdate});
                builder.add1("add", {id(2), id(8)});
              }),
              HasSubstr("rule 'readers before writers'"));
  // The same without the state: an op that must overwrite its input.
  EXPECT_THAT(refusal([](Graph& g) {
                GraphBuilder builder(g, find_fake_op);
                builder.set_tag({.phase = Phase::kUpdate});
                const ValueId old_value = builder.add1("add", {id(4), id(4)});
                const ValueId new_value = builder.add1("overwrite", {old_value});
                builder.add1("add", {old_value, new_value});
              }),
              HasSubstr("rule 'readers before writers'"));
}

TEST(Verifier, RefusesOverwritingWhatTheStepEndsWith) {
  EXPECT_THAT(refusal([](Graph& g) { g.states[0].after = g.states[0].before; }),
              HasSubstr("rule 'overwrites'"));
  EXPECT_THAT(refusal([](Graph& g) { g.outputs.push_back(id(2)); }),
              HasSubstr("rule 'overwrites'"));
}

}  // namespace
}  // namespace anabatic::ir
