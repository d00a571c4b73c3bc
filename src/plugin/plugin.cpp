// SPDX-License-Identifier: Apache-2.0
#include "plugin/plugin.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "base/error.h"
#include "plugin/crash.h"
#include "plugin/table_row.h"

namespace anabatic::plugin {
namespace {

constexpr std::int32_t kMostRows = 1024;

// Calls visit(row, its bytes) for each row of a table of the library, if it has that table.
template <class Row, class Visit>
bool visit_table(void* library, const char* symbol, const std::string& file, TableWords words,
                 Visit&& visit) {
  using Table = const Row* (*)(std::uint32_t, std::int32_t*);
  const auto table = reinterpret_cast<Table>(::dlsym(library, symbol));
  if (table == nullptr) return false;
  std::int32_t count = -1;
  const Row* rows = table(ANABATIC_PLUGIN_ABI, &count);
  ANABATIC_REQUIRE(rows != nullptr, "[plugin] {}: it does not serve version {} of the interface",
                   file, ANABATIC_PLUGIN_ABI);
  ANABATIC_REQUIRE(count >= 0 && count <= kMostRows, "[plugin] {}: {} gave the count {}", file,
                   symbol, count);
  const std::string place = fmt::format("[plugin] {}", file);
  words.place = place;
  words.count = "the count";
  for (std::int32_t i = 0; i < count; ++i) visit(table_row(rows, i, count, words), rows->size);
  return true;
}

// What the last dlopen says of its file.
std::string load_error(const std::filesystem::path& file) {
  const std::string_view text = ::dlerror(), prefix = file.native();
  const bool names_file = text.starts_with(prefix) && text.substr(prefix.size()).starts_with(": ");
  return std::string(names_file ? text.substr(prefix.size() + 2) : text);
}

}  // namespace

Plugin::Plugin(const std::filesystem::path& path)
    : path_(path.string()), file_(path.filename().string()) {
  ANABATIC_REQUIRE(std::filesystem::is_regular_file(path),
                   "[plugin] expected a shared library, found no file {}", path_);
  // Found by its path alone, not in the folders where the system looks for libraries.
  const std::filesystem::path absolute = std::filesystem::absolute(path);
  void* library = ::dlopen(absolute.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw ResourceError(
        fmt::format("[plugin] {} cannot be loaded: {}", path_, load_error(absolute)));
  const bool has_ops = visit_table<anabatic_op>(
      library, "anabatic_plugin", file_, {.rows = "ops", .type = "anabatic_op"},
      [&](const anabatic_op* op, std::size_t bytes) { ops_.emplace_back(op, bytes, file_); });
  const bool has_kernels = visit_table<anabatic_kernel>(
      library, "anabatic_plugin_kernels", file_, {.rows = "kernels", .type = "anabatic_kernel"},
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
