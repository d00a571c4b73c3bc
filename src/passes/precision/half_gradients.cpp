// SPDX-License-Identifier: Apache-2.0
#include "passes/precision/half_gradients.h"

#include <array>
#include <string>

#include "base/error.h"
#include "ir/op_schema.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;

// Attributes of the nodes of a backward that name the dtype of a gradient.
constexpr std::array<const char*, 2> kDtypes{"dtype", "output_dtype"};

// A gradient of zeroes.
void halve_fill(Node& node) {
  const auto found = node.attributes.find("type");
  if (node.op->name != "fill" || found == node.attributes.end()) return;
  TensorType type = parse_tensor_type(std::get<std::string>(found->second));
  if (type.dtype != DType::kBFloat16) return;
  type.dtype = DType::kFloat16;
  found->second = to_string(type);
}

bool is_of_backward(const Node& node) {
  return node.tag.phase == ir::Phase::kBackwardInput ||
         node.tag.phase == ir::Phase::kBackwardWeight;
}

bool put_gradients_in_f16(Graph& graph, const PassContext& context) {
  if (context.options.precision != spec::Precision::kMixed) return false;
  bool changed = false;
  for (Node& node : graph.nodes) {
    if (!is_of_backward(node)) continue;
    for (const char* key : kDtypes)
      if (const auto found = node.attributes.find(key);
          found != node.attributes.end() && found->second == spec::Attribute(std::string("bf16")))
        found->second = std::string("f16");
    halve_fill(node);
    std::vector<TensorType> inputs;
    for (const ir::ValueId input : node.inputs) inputs.push_back(graph.value(input).type);
    const std::vector<TensorType> types = node.op->infer(inputs, node.attributes);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      ANABATIC_CHECK(types[i].dtype != DType::kBFloat16, "[half_gradients] {} gives {}",
                     node.op->name, to_string(types[i]));
      ir::Value& value = graph.value(node.outputs[i]);
      changed |= value.type != types[i];
      value.type = types[i];
    }
  }
  return changed;
}

}  // namespace

const Pass kHalfGradients{.name = "half_gradients",
                          .needs = {"differentiated"},
                          .required = true,
                          .run = put_gradients_in_f16};

}  // namespace anabatic::passes
