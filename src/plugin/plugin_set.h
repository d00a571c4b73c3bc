// SPDX-License-Identifier: Apache-2.0
// The plugins of a run: a value, handed down with CompileOptions as two functions.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "kernels/kernel.h"
#include "plugin/plugin.h"

namespace anabatic::plugin {

class PluginSet {
 public:
  // None: the engine's ops and kernels alone.
  PluginSet() = default;
  // Loads the files. InvalidArgument where two plugins have an op of one name.
  explicit PluginSet(std::span<const std::string> paths);

  const std::vector<const Plugin*>& plugins() const { return plugins_; }
  const PluginOp* find(std::string_view op) const;  // null: no plugin has it

  // Warns of each kernel whose op none of the graphs has: it is never asked.
  void warn_of_idle_kernels(std::span<const ir::Graph* const> graphs) const;

  // Ours, then those of the plugins. Valid as long as the set.
  ir::FindOp find_op() const;
  // Those of the plugins, then ours: a kernel was loaded to be used. What it refuses is ours.
  kernels::FindKernels find_kernels() const;

 private:
  const ir::OpSchema* schema(std::string_view op) const;
  std::vector<const kernels::Kernel*> rows(std::string_view op) const;

  std::vector<const Plugin*> plugins_;
};

// The set of a list of paths, made once. It stays until the process ends, as its plugins do.
const PluginSet& plugin_set(std::span<const std::string> paths);

}  // namespace anabatic::plugin
