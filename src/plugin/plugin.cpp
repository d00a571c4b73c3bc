// SPDX-License-Identifier: Apache-2.0
#include "plugin/plugin.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "base/error.h"
#include "plugin/crash.h"

namespace anabatic::plugin {
namespace {

constexpr std::int32_t kMostRows = 1024;

// Calls visit(row, its bytes) for each row of a table of the library, if it has that table.
template <class Row, class Visit>
bool visit_table(void* library, const char* symbol, const std::string& file, Visit&& visit) {
  using Table = const Row* (*)(std::uint32_t, std::int32_t*);
  const auto table = reinterpret_cast<Table>(::dlsym(library, symbol));
  if (table == nullptr) return false;
  std::int32_t count = -1;
  const Row* rows = table(ANABATIC_PLUGIN_ABI, &count);
  ANABATIC_REQUIRE(rows != nullptr, "[plugin] {}: it does not serve version {} of the interface",
                   file, ANABATIC_PLUGIN_ABI);
  ANABATIC_REQUIRE(count >= 0 && count <= kMostRows, "[plugin] {}: {} gave the count {}", file,
                   symbol, count);
  const auto* bytes = reinterpret_cast<const std::byte*>(rows);
  for (std::int32_t i = 0; i < count; ++i) {
    const auto* row =
        reinterpret_cast<const Row*>(bytes + std::size_t{rows->size} * static_cast<std::size_t>(i));
    ANABATIC_REQUIRE(
        row->size == rows->size && row->size >= sizeof(Row),
        "[plugin] {}: {}: expected rows that begin with their size, at least {}, got {}", file,
        symbol, sizeof(Row), row->size);
    visit(row, row->size);
  }
  return true;
}

}  // namespace

Plugin::Plugin(const std::filesystem::path& path)
    : path_(path.string()), file_(path.filename().string()) {
  ANABATIC_REQUIRE(std::filesystem::is_regular_file(path),
                   "[plugin] expected a shared library, found no file {}", path_);
  // Found by its path alone, not in the folders where the system looks for libraries.
  void* library = ::dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw ResourceError(fmt::format("[plugin] {} cannot be loaded: {}", path_, ::dlerror()));
  const bool has_ops = visit_table<anabatic_op>(
      library, "anabatic_plugin", file_,
      [&](const anabatic_op* op, std::size_t bytes) { ops_.emplace_back(op, bytes, file_); });
  const bool has_kernels =
      visit_table<anabatic_kernel>(library, "anabatic_plugin_kernels", file_,
                                   [&](const anabatic_kernel* row, std::size_t bytes) {
                                     kernels_.emplace_back(row, bytes, file_);
                                   });
  ANABATIC_REQUIRE(has_ops || has_kernels,
                   "[plugin] {} is no plugin: it has neither anabatic_plugin nor "
                   "anabatic_plugin_kernels (include/anabatic/plugin.h)",
                   path_);
  std::set<std::string> names;
  for (const PluginOp& op : ops_)
    for (const std::string& name : {op.name(), op.gradient_name()})
      ANABATIC_REQUIRE(names.insert(name).second, "[plugin] {}: two ops are called {}", file_,
                       name);
}

const Plugin& load_plugin(const std::filesystem::path& path) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::filesystem::path, std::unique_ptr<Plugin>>;
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(path, error);
  ANABATIC_REQUIRE(!error, "[plugin] expected a shared library, found no file {}", path.string());
  const std::lock_guard lock(mutex);
  std::unique_ptr<Plugin>& place = loaded[canonical];
  if (!place) {
    report_crashes();
    place = std::make_unique<Plugin>(canonical);
  }
  return *place;
}

}  // namespace anabatic::plugin
