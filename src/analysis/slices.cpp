// SPDX-License-Identifier: Apache-2.0
#include "analysis/slices.h"

#include <algorithm>

#include "ir/op_schema.h"
#include "spec/product.h"
#include "tensor/panels.h"

namespace anabatic::analysis {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

std::string key_of(const Node& node) {
  const std::string_view segment = text(node.tag.segment);
  return segment.empty() ? std::string(node.op->name)
                         : std::string(segment) + "." + std::string(node.op->name);
}

std::int64_t most_slices(const Graph& graph, const Node& node) {
  if (node.op->most_slices == nullptr || node.attributes.contains("slices")) return 1;
  std::vector<TensorType> inputs;
  for (const ValueId input : node.inputs) inputs.push_back(graph.value(input).type);
  return node.op->most_slices(inputs, node.attributes);
}

bool is_stack(const TensorType& type) { return type.ndim() == 3; }

// Whether it is there anyway: a state, or a copy of one on disk.
bool is_resident(const Graph& graph, ValueId value) {
  const NodeId producer = graph.value(value).producer;
  return producer == ir::kNoNode || graph.node(producer).op->name == "reload";
}

// Whether `value` is a packing that the backward makes of the one that the forward reads, or an
// int8 packing of a parameter.
bool is_packed_again(const Graph& graph, ValueId value) {
  const NodeId producer = graph.value(value).producer;
  if (producer == ir::kNoNode) return false;
  const Node& node = graph.node(producer);
  if (node.op->name != "pack" || node.tag.phase != ir::Phase::kRecompute) return false;
  const TensorType& source = graph.value(node.inputs[0]).type;
  if (!is_int8_panels(graph.value(value).type)) return source.layout == panels_layout(false);
  return source.dtype == DType::kFloat32 && source.layout == kRowMajor &&
         is_resident(graph, node.inputs[0]);
}

// Whether each stack of weights is packed for this call alone; `packs` gets who does.
bool collect_packs(const Graph& graph, const Node& node, const std::vector<int>& num_readers,
                   std::vector<NodeId>& packs) {
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
    if (!is_stack(graph.value(input).type)) return true;
    if (num_readers[index(input)] > 1 || !is_packed_again(graph, input)) return false;
    packs.push_back(graph.value(input).producer);
    return true;
  });
}

}  // namespace

std::vector<SliceableKind> sliceable_kinds(const Graph& graph) {
  std::vector<int> num_readers(graph.values.size(), 0);
  for (const Node& node : graph.nodes)
    for (const ValueId input : node.inputs) ++num_readers[index(input)];
  for (const ValueId output : graph.outputs) ++num_readers[index(output)];
  std::vector<SliceableKind> kinds;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const std::int64_t most = most_slices(graph, node);
    SliceableCall call{.node = NodeId{static_cast<std::uint32_t>(i)}};
    if (most <= 1 || !collect_packs(graph, node, num_readers, call.packs)) continue;
    const std::string key = key_of(node);
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const SliceableKind& other) { return other.key == key; });
    if (kind == kinds.end()) kind = kinds.insert(kind, {.key = key, .most = most});
    kind->most = std::min(kind->most, most);
    kind->calls.push_back(std::move(call));
  }
  return kinds;
}

Node sliced(const Graph& graph, const SliceableCall& call, std::int64_t slices) {
  Node node = graph.node(call.node);
  node.attributes["slices"] = slices;
  for (ValueId& input : node.inputs) {
    const TensorType& packed = graph.value(input).type;
    if (!is_stack(packed)) continue;
    if (is_int8_panels(packed))
      node.attributes[std::string(spec::kPackedFormat)] = to_string(*packed.blocks);
    input = graph.node(graph.value(input).producer).inputs[0];
  }
  return node;
}

}  // namespace anabatic::analysis
