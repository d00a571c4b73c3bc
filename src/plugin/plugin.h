// SPDX-License-Identifier: Apache-2.0
// A loaded plugin: its ops and kernels, checked.
#pragma once
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>

#include "plugin/plugin_kernel.h"
#include "plugin/plugin_op.h"

namespace anabatic::plugin {

class Plugin {
 public:
  // Loads a shared library. ResourceError when it cannot be loaded, InvalidArgument when it is no
  // plugin of this version or one of its tables cannot be right.
  explicit Plugin(const std::filesystem::path& path);
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const std::string& path() const { return path_; }
  const std::string& file() const { return file_; }  // its name
  // They stay where they are.
  const std::deque<PluginOp>& ops() const { return ops_; }
  const std::deque<PluginKernel>& kernels() const { return kernels_; }

 private:
  std::string path_, file_;
  std::deque<PluginOp> ops_;
  std::deque<PluginKernel> kernels_;
};

// The plugin of a file, loaded once. It stays until the process ends, since graphs, programs and
// threads may still use it. A file that changes meanwhile is not read again.
const Plugin& load_plugin(const std::filesystem::path& path);

}  // namespace anabatic::plugin
