// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/check_op.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>

#include "base/error.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "plugin/plugin.h"

namespace anabatic::cli {
namespace {

constexpr std::int64_t kDefaultLimit = 60;  // seconds a case

// An op or a kernel by its name, and a kernel by that of its op.
bool is_wanted(const Invocation& invocation, std::initializer_list<std::string_view> names) {
  if (!invocation.has("--op")) return true;
  const std::string wanted = invocation.value("--op");
  return std::find(names.begin(), names.end(), wanted) != names.end();
}

void print_report(const plugin::check::Report& report, std::string_view name) {
  print_output("{}\n", plugin::check::to_string(report, name));
  for (const auto* lines : {&report.failures, &report.notes})
    for (const std::string& line : *lines) print_output("  {}\n", line);
}

[[noreturn]] void refuse(const plugin::Plugin& plugin, const Invocation& invocation) {
  std::vector<std::string> names;
  for (const plugin::PluginOp& op : plugin.ops()) names.push_back(op.name());
  for (const plugin::PluginKernel& kernel : plugin.kernels()) names.push_back(kernel.name());
  throw InvalidArgument(fmt::format("[check-op] {} has no op or kernel '{}'; it has {}",
                                    plugin.file(), invocation.value("--op"),
                                    fmt::join(names, ", ")));
}

int run_check_op(const Invocation& invocation) {
  const plugin::Plugin& plugin = plugin::load_plugin(invocation.positionals.at(0));
  const std::int64_t limit = invocation.integer("--limit", kDefaultLimit);
  ANABATIC_REQUIRE(limit >= 1 && limit <= 86400,
                   "[check-op] --limit: expected 1 to 86400 seconds, got {}", limit);
  int num_ops = 0, num_kernels = 0, num_failed = 0, num_unchecked = 0;
  const auto check = [&](std::string_view name, int& count, const auto& body) {
    flush_output();
    const plugin::check::Report report = body();
    print_report(report, name);
    ++count;
    num_failed += report.failures.empty() ? 0 : 1;
  };
  const std::chrono::seconds seconds(limit);
  for (const plugin::PluginOp& op : plugin.ops())
    if (is_wanted(invocation, {op.name()}))
      check(op.name(), num_ops, [&] { return plugin::check::check_op(op, seconds); });
  for (const plugin::PluginKernel& kernel : plugin.kernels()) {
    if (!is_wanted(invocation, {kernel.name(), kernel.op()})) continue;
    if (plugin::check::can_check(kernel)) {
      check(kernel.name(), num_kernels,
            [&] { return plugin::check::check_kernel(kernel, seconds); });
      continue;
    }
    print_output("{}: not checked, for there are no cases of {}\n", kernel.name(), kernel.op());
    ++num_unchecked;
  }
  if (num_ops + num_kernels + num_unchecked == 0) refuse(plugin, invocation);
  if (plugin.kernels().empty())
    print_output("{} ops checked, {} failed\n", num_ops, num_failed);
  else
    print_output("{} ops and {} kernels checked, {} failed\n", num_ops, num_kernels, num_failed);
  return num_failed == 0 ? 0 : 1;
}

}  // namespace

const Verb& check_op_verb() {
  static const Verb verb{
      "check-op",
      "whether ops and kernels of a plugin keep to its contract: shapes, bits, gradients, memory",
      "LIB",
      {{.name = "--op", .help = "checks this op or kernel alone", .value = "NAME"},
       {.name = "--limit", .help = "seconds that a case may take; default 60", .value = "SECONDS"}},
      false,
      run_check_op};
  return verb;
}

}  // namespace anabatic::cli
