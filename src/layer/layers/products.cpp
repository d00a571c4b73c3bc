// SPDX-License-Identifier: Apache-2.0
// Layers around products: dense and sparse feed-forward, and the head with its loss.
#include <fmt/core.h>

#include "layer/layer_builder.h"
#include "layer/layers/layers.h"

namespace anabatic::layer {
namespace {

// How a matrix of a weight is stored: an output a row, with gate before up, or an output a column,
// with gate and up in turn.
struct Storage {
  bool by_columns = false;
  std::int64_t outputs() const { return by_columns ? -1 : -2; }  // the axis
  std::int64_t inputs() const { return by_columns ? -2 : -1; }
};

// Outputs of one operand of the activation in each matrix of gate_up.
std::int64_t width_of(const LayerBuilder& b, Storage storage, const spec::Attributes& activation) {
  const std::int64_t outputs = b.dim("gate_up", storage.outputs()),
                     count = num_operands(spec::activation_of(activation)),
                     inputs = b.dim("down", storage.inputs());
  const char *axis = storage.by_columns ? "columns" : "rows",
             *other_axis = storage.by_columns ? "rows" : "columns";
  if (outputs % count != 0)
    b.fail(fmt::format("expected an even number of {} in gate_up, gate and {} up, got {}", axis,
                       storage.by_columns ? "in turn" : "then", outputs));
  if (inputs != outputs / count)
    b.fail(fmt::format("expected down with {} {} for gate_up with {} {}, got {}", outputs / count,
                       other_axis, outputs, axis, inputs));
  return outputs / count;
}

// The activation of the products of x that `product` makes, of a weight and a bias's name.
template <class Product>
ir::ValueId activated(LayerBuilder& b, Storage storage, const Product& product) {
  const spec::Attributes activation = b.activation();
  const std::int64_t width = width_of(b, storage, activation);
  const int count = num_operands(spec::activation_of(activation));
  constexpr const char *kParts[] = {"gate", "up"}, *kBiases[] = {"gate_bias", "up_bias"};
  std::vector<ir::ValueId> operands;
  for (int i = 0; i < count; ++i) {
    const ir::ValueId weight = storage.by_columns
                                   ? b.weight_columns("gate_up", kParts[i], i, count)
                                   : b.weight_rows("gate_up", kParts[i], i * width, width);
    operands.push_back(product(weight, kBiases[i]));
  }
  return b.op("activation", std::move(operands), activation, "activation");
}

ir::ValueId down_weight(LayerBuilder& b, Storage storage) {
  return storage.by_columns ? b.weight_columns("down", "down", 0, 1) : b.weight("down");
}

Storage storage_of_stacks(const LayerBuilder& b) {
  const std::string stacks = b.word("stacks", "rows");
  if (stacks != "rows" && stacks != "columns")
    b.fail("expected attribute 'stacks' to be rows or columns, got '" + stacks + "'");
  return {.by_columns = stacks == "columns"};
}

// Gate and up have biases both, or none does.
void check_biases(const LayerBuilder& b, Storage storage) {
  const bool is_gated = spec::is_gated(spec::activation_of(b.activation()));
  if (is_gated && b.has("gate_bias") != b.has("up_bias"))
    b.fail("expected gate_bias and up_bias together, got one");
  if (!is_gated && b.has("up_bias")) b.fail("expected no up_bias, for there is no up");
  for (const char* bias : {"gate_bias", "up_bias", "down_bias"}) {
    if (!b.has(bias)) continue;
    const bool is_of_down = std::string_view(bias) == "down_bias";
    b.same_dim(bias, 0, "down", 0);
    b.same_dim(bias, 1, "down", is_of_down ? storage.outputs() : storage.inputs());
  }
}

}  // namespace

void mlp(LayerBuilder& b) {
  b.same_dim("gate_up", 1, "x", 1);
  b.same_dim("down", 0, "x", 1);
  b.begin("mlp");
  const ir::ValueId x = b.rounded("x");
  const ir::ValueId inner = activated(b, {}, [&](ir::ValueId weight, const char*) {
    return b.op("linear", {x, weight});
  });
  b.output(b.op("linear", {inner, b.weight("down")}, b.output_dtype("x")), "y", b.dtype("x"));
}

void gated_mlp(LayerBuilder& b) {
  for (const char* weight : {"gate", "up"}) {
    b.same_dim(weight, 0, "down", 1);
    b.same_dim(weight, 1, "x", 1);
  }
  b.same_dim("down", 0, "x", 1);
  const spec::Attributes activation = b.activation();
  if (!spec::is_gated(spec::activation_of(activation)))
    b.fail("expected an activation of gate and up, got '" + b.word("activation", "") + "'");
  b.begin("mlp");
  const ir::ValueId x = b.rounded("x");
  const ir::ValueId gate = b.op("linear", {x, b.weight("gate")}),
                    up = b.op("linear", {x, b.weight("up")});
  const ir::ValueId inner = b.op("activation", {gate, up}, activation, "activation");
  b.output(b.op("linear", {inner, b.weight("down")}, b.output_dtype("x")), "y", b.dtype("x"));
}

void linear(LayerBuilder& b) {
  b.same_dim("weight", 1, "x", 1);
  b.begin("linear");
  const ir::ValueId x = b.rounded("x");
  b.output(b.op("linear", {x, b.weight("weight")}, b.output_dtype("x")), "y", b.dtype("x"));
}

void moe_experts(LayerBuilder& b) {
  const Storage storage = storage_of_stacks(b);
  b.same_dim("gate_up", storage.inputs(), "x", 1);
  b.same_dim("down", 0, "gate_up", 0);
  b.same_dim("down", storage.outputs(), "x", 1);
  b.same_dim("index", 0, "x", 0);
  for (const std::int64_t axis : {0, 1}) b.same_dim("weights", axis, "index", axis);
  const std::int64_t num_experts = b.dim("gate_up", 0), top_k = b.dim("index", 1);
  if (top_k < 1 || top_k > num_experts)
    b.fail("expected 1 to " + std::to_string(num_experts) + " experts a token in index, got " +
           std::to_string(top_k));
  check_biases(b, storage);
  b.limit("index", {.low = 0, .high = num_experts - 1});
  b.begin("dispatch");
  const ir::ValueId x = b.rounded("x");
  const ir::ValueId index = b.input("index"), weights = b.precise("weights");
  const auto [row_map, slots, offsets] =
      b.ops<3>("route_sort", {index}, {{"num_experts", num_experts}});
  const ir::ValueId rows = b.op("permute", {x, row_map}, {{"top_k", top_k}});
  b.begin("experts");
  const ir::ValueId groups = offsets;
  const ir::ValueId inner = activated(b, storage, [&](ir::ValueId weight, const char* bias) {
    if (!b.has(bias)) return b.op("grouped_linear", {rows, weight, groups});
    return b.op("grouped_linear", {rows, weight, groups, b.vector(bias)}, {{"bias", true}});
  });
  const ir::ValueId down = b.op("grouped_linear", {inner, down_weight(b, storage), offsets});
  b.begin("combine");
  ir::ValueId y = b.op("unpermute", {down, weights, slots});
  // The combine is linear: the biases of down are added after it, times the router's weights. Their
  // gradient reads that of y as it comes.
  if (b.has("down_bias"))
    y = b.op("expert_bias", {b.in_dtype(y, b.dtype("x")), b.vector("down_bias"), weights, index});
  b.output(y, "y", b.dtype("x"));
}

void grouped_linear(LayerBuilder& b) {
  b.same_dim("weight", 2, "x", 1);
  if (b.dim("offsets", 0) != b.dim("weight", 0) + 1)
    b.fail("expected " + std::to_string(b.dim("weight", 0) + 1) + " offsets, got " +
           std::to_string(b.dim("offsets", 0)));
  b.limit("offsets", {.low = 0, .high = b.dim("x", 0), .never_falls = true, .has_both_ends = true});
  b.begin("experts");
  const ir::ValueId x = b.rounded("x"), weight = b.weight("weight"), offsets = b.input("offsets");
  b.output(b.op("grouped_linear", {x, weight, offsets}), "y", b.dtype("x"));
}

// The gradients are made in the forward, for a loss with gradient 1: the logits are never stored.
void linear_cross_entropy(LayerBuilder& b) {
  b.same_dim("weight", 1, "x", 1);
  b.same_dim("labels", 0, "x", 0);
  b.limit("labels", {.low = 0, .high = b.dim("weight", 0) - 1, .ignored = -100});
  // The one pass makes both gradients, or that of x alone.
  b.differentiate_with("weight", "x");
  b.begin("head");
  const ir::ValueId x = b.rounded("x"), weight = b.weight("weight");
  const ir::ValueId logits = b.op("linear", {x, weight}, b.output_dtype("scale"));
  b.begin("loss");
  const auto [loss, lse] = b.ops<2>("cross_entropy", {logits, b.input("labels"), b.input("scale")});
  b.output(loss, "loss", LayerDtype::kFloat32);
  b.objective(loss);
}

}  // namespace anabatic::layer
