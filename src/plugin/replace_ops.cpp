// SPDX-License-Identifier: Apache-2.0
#include "plugin/replace_ops.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "ir/op_schema.h"

namespace anabatic::plugin {
namespace {

constexpr std::string_view kActivation = "activation";

// Whether a replacement's op names the node's: its op, or its activation.
bool is_named(const ir::Node& node, std::string_view op) {
  if (node.op->name == op) return true;
  if (node.op->name != kActivation) return false;
  return spec::get_string(node.attributes, kActivation) == op;
}

std::string name_of(const ir::Node& node) {
  return node.op->name == kActivation ? spec::get_string(node.attributes, kActivation)
                                      : std::string(node.op->name);
}

// The ops of a segment, or all segments where there is none of that name.
std::string found_instead(const ir::Graph& graph, const std::string& segment) {
  std::set<std::string> segments, ops;
  for (const ir::Node& node : graph.nodes) {
    segments.emplace(text(node.tag.segment));
    if (text(node.tag.segment) == segment) ops.insert(name_of(node));
  }
  std::string list;
  for (const std::string& word : ops.empty() ? segments : ops)
    list += (list.empty() ? "" : ", ") + word;
  return ops.empty() ? fmt::format("the model has the segments {}", list)
                     : fmt::format("segment {} has the ops {}", segment, list);
}

std::string show(const std::vector<TensorType>& types) {
  std::string text;
  for (const TensorType& type : types)
    text += (text.empty() ? "" : ", ") + anabatic::to_string(type);
  return text;
}

// The node's attributes that the other op has too.
spec::Attributes kept_attributes(const ir::Node& node, const PluginOp& with,
                                 const std::string& place) {
  spec::Attributes kept;
  for (const auto& [key, value] : node.attributes) {
    if (with.defaults().contains(key))
      kept[key] = value;
    else
      ANABATIC_REQUIRE(key == kActivation && node.op->name == kActivation,
                       "{}: {} has the attribute {} = {}, which {} has not", place, name_of(node),
                       key, spec::to_string(value), with.name());
  }
  return kept;
}

}  // namespace

void replace_ops(ir::Graph& graph, std::span<const Replacement> replacements,
                 const PluginSet& plugins) {
  for (const Replacement& replacement : replacements) {
    const std::string place = "[model.replace] " + to_string(replacement);
    const PluginOp* with = plugins.find(replacement.with);
    if (with == nullptr) {
      std::vector<std::string> known;
      for (const Plugin* plugin : plugins.plugins())
        for (const PluginOp& op : plugin->ops()) known.push_back(op.name());
      const auto nearest = nearest_word(replacement.with, known);
      throw InvalidArgument(fmt::format("{}: no plugin has an op {}; {}", place, replacement.with,
                                        nearest ? fmt::format("did you mean {}?", *nearest)
                                        : known.empty()
                                            ? "`plugins` names none"
                                            : fmt::format("there are {}", fmt::join(known, ", "))));
    }
    ANABATIC_REQUIRE(with->has_gradient(), "{}: {} of {} has no backward", place, with->name(),
                     with->file());
    std::size_t count = 0;
    for (ir::Node& node : graph.nodes) {
      if (text(node.tag.segment) != replacement.segment || !is_named(node, replacement.op))
        continue;
      std::vector<TensorType> inputs, outputs, made;
      for (const ir::ValueId value : node.inputs) inputs.push_back(graph.value(value).type);
      for (const ir::ValueId value : node.outputs) outputs.push_back(graph.value(value).type);
      ANABATIC_REQUIRE(inputs.size() == with->inputs().size(), "{}: {} takes {} inputs, {} is {}",
                       place, name_of(node), inputs.size(), with->name(), with->signature());
      spec::Attributes attributes = kept_attributes(node, *with, place);
      try {
        made = with->infer(inputs, attributes);
      } catch (const Error& error) {
        throw InvalidArgument(fmt::format("{}: {}", place, error.what()));
      }
      ANABATIC_REQUIRE(made == outputs, "{}: {} gives {}, {} gives {}", place, name_of(node),
                       show(outputs), with->name(), show(made));
      node.op = &with->schema();
      node.attributes = std::move(attributes);
      ++count;
    }
    ANABATIC_REQUIRE(count > 0, "{}: no node of the model is such an op; {}", place,
                     found_instead(graph, replacement.segment));
  }
}

}  // namespace anabatic::plugin
