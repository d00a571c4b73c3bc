// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "anabatic/error.h"
#include "ops/table.h"
#include "unit/ops_samples.h"

namespace anabatic::ops {
namespace {

using testing::op_samples;
using testing::OpSample;

constexpr DType kStorage[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat64};

TEST(OpTable, IsInAlphabeticalOrderWithoutDuplicates) {
  for (std::size_t i = 1; i < all_ops().size(); ++i)
    EXPECT_LT(all_ops()[i - 1]->name, all_ops()[i]->name);
}

TEST(OpTable, FindsEveryOpByNameAndNoOther) {
  ASSERT_FALSE(all_ops().empty());
  for (const ir::OpSchema* op : all_ops()) EXPECT_EQ(find_op(op->name), op);
  EXPECT_EQ(find_op("linea"), nullptr);
  EXPECT_EQ(find_op(""), nullptr);
  EXPECT_EQ(find_op("zzz"), nullptr);
}

TEST(OpTable, HasASampleOfEveryOpAndForm) {
  std::set<std::string> names, sampled, forms;
  for (const ir::OpSchema* op : all_ops()) names.emplace(op->name);
  for (const OpSample& sample : op_samples()) {
    sampled.insert(sample.op);
    const ir::OpSchema* op = find_op(sample.op);
    if (op != nullptr && op->form != nullptr) forms.insert(op->form(sample.attributes));
  }
  EXPECT_EQ(names, sampled);
  EXPECT_EQ(forms, (std::set<std::string>{"adamw", "adamw packs_both", "adamw packs_both in_int8",
                                          "adamw packs_both to_grid", "adamw packs_transposed",
                                          "adamw split", "adamw split packs_transposed", "block16",
                                          "block32", "unstructured"}));
}

TEST(OpTable, GivesEveryOpItsFields) {
  for (const ir::OpSchema* op : all_ops()) {
    SCOPED_TRACE(op->name);
    EXPECT_NE(op->infer, nullptr);
    EXPECT_NE(op->cost, nullptr);
    EXPECT_EQ(op->signature.substr(0, 1), "(");
    EXPECT_NE(op->signature.find("->"), std::string_view::npos);
    EXPECT_TRUE(op->max_inputs == -1 || op->max_inputs >= op->min_inputs);
    EXPECT_TRUE(op->num_outputs > 0 || op->num_outputs == ir::kAnyNumber);
    EXPECT_TRUE(op->writes_all || op->can_accumulate)
        << "an op that leaves rows untouched must be able to add to zeroes";
  }
}

TEST(OpTable, InfersEverySampleInEveryStorageDtype) {
  for (const OpSample& sample : op_samples())
    for (const DType storage : kStorage) {
      SCOPED_TRACE(sample.op + " " + std::string(to_string(storage)));
      const ir::OpSchema* op = find_op(sample.op);
      const auto inputs = testing::sample_types(sample, storage);
      const auto outputs = op->infer(inputs, sample.attributes);
      ASSERT_FALSE(outputs.empty());
      if (op->num_outputs != ir::kAnyNumber) {
        ASSERT_EQ(static_cast<int>(outputs.size()), op->num_outputs);
      }
      const ir::Cost cost = op->cost(inputs, outputs, sample.attributes);
      EXPECT_GE(cost.flops, 0);
      EXPECT_EQ(cost.bytes_written > 0, op->name != "accumulate");
    }
}

// Calls body(output, input) for each output of the sample that the rule lets overwrite an input.
template <class Body>
void for_aliases(const OpSample& sample, DType storage,
                 ir::Aliases (*rule)(const spec::Attributes&), Body&& body) {
  const auto inputs = testing::sample_types(sample, storage);
  const auto outputs = find_op(sample.op)->infer(inputs, sample.attributes);
  const ir::Aliases aliases = rule != nullptr ? rule(sample.attributes) : ir::Aliases{};
  for (std::size_t i = 0; i < std::min(aliases.size(), outputs.size()); ++i)
    if (const int input = aliases[i]; input >= 0) {
      ASSERT_LT(static_cast<std::size_t>(input), inputs.size());
      body(outputs[i], inputs[static_cast<std::size_t>(input)]);
    }
}

TEST(OpTable, OverwritesInputsOfTheOutputsType) {
  for (const OpSample& sample : op_samples())
    for (const DType storage : kStorage) {
      SCOPED_TRACE(sample.op + " " + std::string(to_string(storage)));
      for_aliases(sample, storage, find_op(sample.op)->must_alias,
                  [](const TensorType& output, const TensorType& input) {
                    EXPECT_EQ(output, input) << to_string(output) << " over " << to_string(input);
                  });
    }
}

// A planner takes an offer only where both have as many bytes. Attributes may give the output
// another dtype, so they agree for some dtype, not for every one.
TEST(OpTable, OffersInputsOfTheOutputsShapeAndOfItsSizeForSomeDtype) {
  std::set<std::string> offering, of_one_size;
  for (const OpSample& sample : op_samples())
    for (const DType storage : kStorage) {
      SCOPED_TRACE(sample.op + " " + std::string(to_string(storage)));
      for_aliases(sample, storage, find_op(sample.op)->may_alias,
                  [&](const TensorType& output, const TensorType& input) {
                    EXPECT_EQ(output.shape, input.shape);
                    offering.insert(sample.op);
                    if (output.num_bytes() == input.num_bytes()) of_one_size.insert(sample.op);
                  });
    }
  EXPECT_FALSE(offering.empty());
  EXPECT_EQ(offering, of_one_size);
}

TEST(OpTable, RefusesAnAttributeThatTheOpDoesNotKnow) {
  for (const OpSample& sample : op_samples()) {
    SCOPED_TRACE(sample.op);
    spec::Attributes attributes = sample.attributes;
    attributes["no_such_attribute"] = true;
    const auto inputs = testing::sample_types(sample, DType::kFloat32);
    EXPECT_THROW(find_op(sample.op)->infer(inputs, attributes), InvalidArgument);
  }
}

TEST(OpTable, RefusesAMissingAttributeByName) {
  for (const OpSample& sample : op_samples())
    for (const auto& [key, value] : sample.attributes) {
      if (sample.optional.contains(key)) continue;
      SCOPED_TRACE(sample.op + " without " + key);
      spec::Attributes attributes = sample.attributes;
      attributes.erase(key);
      const auto inputs = testing::sample_types(sample, DType::kFloat32);
      try {
        find_op(sample.op)->infer(inputs, attributes);
        FAIL() << "accepted";
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("'" + key + "'"), std::string::npos)
            << error.what();
      }
    }
}

// Any single input of another dtype kind or another ndim is refused.
TEST(OpTable, RefusesAnInputOfAnotherKind) {
  for (const OpSample& sample : op_samples())
    for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
      SCOPED_TRACE(sample.op + " input " + std::to_string(i));
      auto inputs = testing::sample_types(sample, DType::kFloat32);
      inputs[i].dtype = DType::kBool;
      EXPECT_THROW(find_op(sample.op)->infer(inputs, sample.attributes), InvalidArgument);
    }
}

// The gradients of a sample: shape of the input; dtype of the input, or wide for weight-gradients.
void check_gradients(const OpSample& sample, DType storage) {
  ir::Graph graph;
  ir::GraphBuilder builder(graph, find_op);
  const ir::Tag forward{.layer = 3, .segment = intern("mlp")};
  builder.set_tag(forward);
  const ir::NodeId id = testing::add_sample(builder, sample, storage);
  const ir::Node node = graph.node(id);
  const std::size_t num_forward = graph.nodes.size();
  builder.set_tag({.phase = ir::Phase::kBackwardInput, .layer = 3, .segment = intern("mlp")});
  ir::Gradients of_outputs(node.outputs.size());
  for (const std::size_t i : sample.differentiable_outputs)
    of_outputs[i] = builder.add1(
        "fill", {}, {{"type", to_string(builder.type(node.outputs[i]))}, {"value", 1.0}});
  const ir::Gradients gradients = node.op->gradient(builder, node, of_outputs);
  ASSERT_EQ(gradients.size(), node.inputs.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const TensorType& input = builder.type(node.inputs[i]);
    if (!gradients[i]) continue;
    const ir::Value& gradient = graph.value(*gradients[i]);
    EXPECT_EQ(gradient.type.shape, input.shape) << "input " << i;
    const ir::Node& writer = graph.node(gradient.producer);
    const DType wide = storage == DType::kFloat64 ? storage : DType::kFloat32;
    EXPECT_EQ(gradient.type.dtype,
              writer.tag.phase == ir::Phase::kBackwardWeight ? wide : input.dtype)
        << "input " << i;
    EXPECT_EQ(writer.op->can_accumulate, writer.tag.phase == ir::Phase::kBackwardWeight);
  }
  for (std::size_t i = num_forward; i < graph.nodes.size(); ++i) {
    EXPECT_NE(graph.nodes[i].tag.phase, ir::Phase::kForward);
    EXPECT_EQ(graph.nodes[i].tag.layer, 3);
    EXPECT_EQ(graph.nodes[i].tag.segment, intern("mlp"));
  }
  EXPECT_EQ(builder.tag().phase, ir::Phase::kBackwardInput) << "the tag is put back";
  EXPECT_NO_THROW(ir::verify(graph));
}

TEST(OpTable, BuildsAVerifiedGradientOfEveryDifferentiableOp) {
  int num_differentiable = 0;
  for (const OpSample& sample : op_samples()) {
    if (find_op(sample.op)->gradient == nullptr) continue;
    ++num_differentiable;
    for (const DType storage : kStorage) {
      SCOPED_TRACE(sample.op + " " + std::string(to_string(storage)));
      check_gradients(sample, storage);
    }
  }
  EXPECT_GT(num_differentiable, 0);
}

TEST(OpTable, BuildsNothingWhereNoGradientFlows) {
  for (const OpSample& sample : op_samples()) {
    if (find_op(sample.op)->gradient == nullptr) continue;
    SCOPED_TRACE(sample.op);
    ir::Graph graph;
    ir::GraphBuilder builder(graph, find_op);
    const ir::Node node = graph.node(testing::add_sample(builder, sample, DType::kFloat32));
    const std::size_t num_nodes = graph.nodes.size();
    const ir::Gradients of_outputs(node.outputs.size());
    for (const auto& gradient : node.op->gradient(builder, node, of_outputs))
      EXPECT_FALSE(gradient.has_value());
    EXPECT_EQ(graph.nodes.size(), num_nodes);
  }
}

}  // namespace
}  // namespace anabatic::ops
