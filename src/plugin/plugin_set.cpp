// SPDX-License-Identifier: Apache-2.0
#include "plugin/plugin_set.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "ops/table.h"

namespace anabatic::plugin {

PluginSet::PluginSet(std::span<const std::string> paths) {
  std::map<std::string, const Plugin*> owners;
  for (const std::string& path : paths) {
    const Plugin& plugin = load_plugin(path);
    if (std::find(plugins_.begin(), plugins_.end(), &plugin) != plugins_.end()) continue;
    for (const PluginOp& op : plugin.ops()) {
      const auto [owner, is_new] = owners.try_emplace(op.name(), &plugin);
      ANABATIC_REQUIRE(is_new, "[plugin] both {} and {} have an op {}", owner->second->path(),
                       plugin.path(), op.name());
    }
    plugins_.push_back(&plugin);
  }
}

const PluginSet& plugin_set(std::span<const std::string> paths) {
  static std::mutex mutex;
  static auto& sets = *new std::map<std::vector<std::string>, PluginSet>;
  const std::lock_guard lock(mutex);
  const std::vector<std::string> key(paths.begin(), paths.end());
  const auto found = sets.find(key);
  return found != sets.end() ? found->second : sets.emplace(key, PluginSet(paths)).first->second;
}

const PluginOp* PluginSet::find(std::string_view op) const {
  for (const Plugin* plugin : plugins_)
    for (const PluginOp& one : plugin->ops())
      if (one.name() == op) return &one;
  return nullptr;
}

void PluginSet::warn_of_idle_kernels(std::span<const ir::Graph* const> graphs) const {
  for (const Plugin* plugin : plugins_)
    for (const PluginKernel& kernel : plugin->kernels()) {
      const auto has_op = [&](const ir::Graph* graph) {
        return std::ranges::any_of(
            graph->nodes, [&](const ir::Node& node) { return node.op->name == kernel.op(); });
      };
      if (std::ranges::none_of(graphs, has_op))
        log_warning(
            "[plugin] {}: no op of this run is `{}`, so the kernel {} is never asked; "
            "--compiler.dump DIR writes the ops of a step",
            plugin->file(), kernel.op(), kernel.name());
    }
}

const ir::OpSchema* PluginSet::schema(std::string_view name) const {
  if (const ir::OpSchema* ours = ops::find_op(name); ours != nullptr) return ours;
  for (const Plugin* plugin : plugins_)
    for (const PluginOp& op : plugin->ops()) {
      if (op.name() == name) return &op.schema();
      if (op.has_gradient() && op.gradient_name() == name) return &op.gradient_schema();
    }
  return nullptr;
}

std::vector<const kernels::Kernel*> PluginSet::rows(std::string_view name) const {
  std::vector<const kernels::Kernel*> result;
  for (const Plugin* plugin : plugins_) {
    for (const PluginKernel& kernel : plugin->kernels())
      if (kernel.op() == name) result.push_back(&kernel.row());
    for (const PluginOp& op : plugin->ops()) {
      if (op.name() == name) result.push_back(&op.kernel());
      if (op.has_gradient() && op.gradient_name() == name) result.push_back(&op.gradient_kernel());
    }
  }
  const std::vector<const kernels::Kernel*> ours = kernels::candidates(name);
  result.insert(result.end(), ours.begin(), ours.end());
  return result;
}

ir::FindOp PluginSet::find_op() const {
  if (plugins_.empty()) return ops::find_op;
  return ir::FindOp::bind<&PluginSet::schema>(*this);
}

kernels::FindKernels PluginSet::find_kernels() const {
  if (plugins_.empty()) return kernels::candidates;
  return kernels::FindKernels::bind<&PluginSet::rows>(*this);
}

}  // namespace anabatic::plugin
