// SPDX-License-Identifier: Apache-2.0
#include "plan/kernel_selection.h"

#include <algorithm>

#include "base/error.h"
#include "ir/op_schema.h"
#include "ops/ranks/dispatch_map.h"
#include "plan/plan.h"

namespace anabatic::plan {
namespace {

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string result;
  for (const std::string& part : parts) {
    if (!result.empty()) result += separator;
    result += part;
  }
  return result;
}

std::string describe(const NodeTypes& types) {
  std::string result = "(";
  for (const TensorType& type : types.inputs) {
    if (result.size() > 1) result += ", ";
    result += to_string(type);
  }
  return result + ")";
}

}  // namespace

KernelChoice select_kernel(const spec::Problem& problem, const KernelRows& rows,
                           std::string_view where) {
  KernelChoice choice;
  const std::vector<const kernels::Kernel*> all = rows.find(text(problem.op));
  for (const kernels::Kernel* row : all) {
    if (!row->name.starts_with(rows.only)) {
      choice.rejections.push_back(fmt::format("{}: only {} is asked for", row->name, rows.only));
      continue;
    }
    const kernels::Support support = row->supports(problem);
    if (!support) {
      choice.rejections.push_back(fmt::format("{}: {}", row->name, support.reason));
      continue;
    }
    choice.kernel = row;
    choice.workspace_bytes = row->workspace_bytes ? row->workspace_bytes(problem) : 0;
    choice.slicing_bytes = row->slicing_bytes ? row->slicing_bytes(problem) : 0;
    ANABATIC_CHECK(choice.workspace_bytes >= 0, "[kernel selection] {} wants {} bytes of workspace",
                   row->name, choice.workspace_bytes);
    return choice;
  }
  throw Unsupported(
      fmt::format("[{}] expected a kernel for {}, got {}", where, text(problem.op),
                  all.empty() ? "no candidate" : "refusals: " + join(choice.rejections, "; ")));
}

NodeTypes node_types(const ir::Graph& graph, const ir::Node& node) {
  NodeTypes types;
  types.inputs.reserve(node.inputs.size());
  types.outputs.reserve(node.outputs.size());
  for (ir::ValueId value : node.inputs) types.inputs.push_back(graph.value(value).type);
  for (ir::ValueId value : node.outputs) types.outputs.push_back(graph.value(value).type);
  return types;
}

NodeTypes expected_types(const ir::Graph& graph, const ir::Node& node) {
  NodeTypes types = node_types(graph, node);
  const spec::ProductForm* form = ir::product_form(node);
  if (form == nullptr || !form->is_grouped) return types;
  for (const ir::ValueId input : node.inputs) {
    const ir::NodeId producer = graph.value(input).producer;
    if (producer == ir::kNoNode || graph.node(producer).op != &ops::kDispatchMap) continue;
    const spec::Attributes& attributes = graph.node(producer).attributes;
    const std::int64_t most = spec::get_int(attributes, "rows"),
                       expected = spec::get_int(attributes, "expected");
    for (std::vector<TensorType>* list : {&types.inputs, &types.outputs})
      for (TensorType& type : *list)
        if (type.ndim() <= 2 && type.ndim() > 0 && type.dim(0) == most) type.shape[0] = expected;
    break;
  }
  return types;
}

spec::Attributes zero_fill_attributes(const TensorType& type) {
  return {{"value", 0.0}, {"type", to_string(type)}};
}

Additions::Additions(const ir::Graph& graph, spec::Places places)
    : is_added_(graph.values.size(), false) {
  for (const ir::Node& node : graph.nodes) {
    if (!is_accumulate(node)) continue;
    // The first input is the sum.
    const bool adds = places != spec::Places{spec::Place::kOnly} || node.inputs.size() > 2;
    for (std::size_t i = 1; i < node.inputs.size(); ++i) is_added_[index(node.inputs[i])] = adds;
  }
}

bool Additions::may_add(const ir::Node& node) const {
  return !node.op->writes_all ||
         std::any_of(node.outputs.begin(), node.outputs.end(),
                     [&](ir::ValueId output) { return is_added_[index(output)]; });
}

std::vector<KernelChoice> select_kernels(const ir::Graph& graph, const spec::DeviceSpec& device,
                                         const KernelRows& rows, spec::Places places,
                                         std::vector<std::string>* explanation) {
  const Additions additions(graph, places);
  std::vector<KernelChoice> choices(graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::Node& node = graph.nodes[i];
    if (is_accumulate(node)) continue;
    const NodeTypes types = node_types(graph, node);
    const std::string where = node_label(node) + describe(types);
    choices[i] = select_kernel({.op = intern(node.op->name),
                                .attributes = &node.attributes,
                                .inputs = types.inputs,
                                .outputs = types.outputs,
                                .device = &device,
                                .may_add = additions.may_add(node)},
                               rows, where);
    if (!explanation) continue;
    std::string line = fmt::format("n{} {}: {}", i, where, choices[i].kernel->name);
    if (!choices[i].rejections.empty()) line += "; rejected " + join(choices[i].rejections, "; ");
    explanation->push_back(std::move(line));
  }
  return choices;
}

}  // namespace anabatic::plan
