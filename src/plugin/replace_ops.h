// SPDX-License-Identifier: Apache-2.0
// `model.replace`: ops of a model by ops of plugins, in the graph of the forward before any pass.
#pragma once
#include <span>

#include "ir/graph.h"
#include "plugin/plugin_set.h"
#include "plugin/replacement.h"

namespace anabatic::plugin {

// Replaces every node of a segment and op. An attribute that both ops have keeps its value.
// InvalidArgument where there is no such node, the op of the plugin is unknown or has no gradient,
// or the signatures do not agree: operands, results, and attributes that would be lost.
void replace_ops(ir::Graph& graph, std::span<const Replacement> replacements,
                 const PluginSet& plugins);

}  // namespace anabatic::plugin
