// SPDX-License-Identifier: Apache-2.0
// A kernel of a plugin for an op that the engine has.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "anabatic/plugin.h"
#include "kernels/kernel.h"
#include "plugin/plugin_call.h"

namespace anabatic::plugin {

class PluginKernel {
 public:
  // InvalidArgument beginning with `file` for a row that cannot be right.
  PluginKernel(const anabatic_kernel* kernel, std::size_t bytes, std::string file);
  PluginKernel(const PluginKernel&) = delete;
  PluginKernel& operator=(const PluginKernel&) = delete;

  const std::string& op() const { return op_; }
  const std::string& name() const { return name_; }  // "plugin:NAME"
  const kernels::Kernel& row() const { return row_; }
  const anabatic_kernel& raw() const { return kernel_; }
  CallPlace place(std::string_view function, std::string_view node = {}) const {
    return {.plugin = file_, .op = op_, .function = function, .node = node};
  }

 private:
  // What the row calls.
  kernels::Support supports(const spec::Problem& problem) const;
  std::int64_t workspace_bytes(const spec::Problem& problem) const;
  std::vector<std::byte> prepare(const spec::Problem& problem) const;
  void run(const kernels::Arguments& arguments) const;

  anabatic_kernel kernel_{};
  std::string file_, op_, name_;
  kernels::Kernel row_{};
};

}  // namespace anabatic::plugin
