// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/check_op.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "plugin/plugin.h"

namespace anabatic::cli {
namespace {

constexpr std::int64_t kDefaultLimit = 60;  // seconds a case

std::vector<const plugin::PluginOp*> ops_to_check(const plugin::Plugin& plugin,
                                                  const Invocation& invocation) {
  std::vector<const plugin::PluginOp*> result;
  std::vector<std::string> names;
  for (const plugin::PluginOp& op : plugin.ops()) {
    names.push_back(op.name());
    if (!invocation.has("--op") || invocation.value("--op") == op.name()) result.push_back(&op);
  }
  ANABATIC_REQUIRE(!names.empty(), "[check-op] {} has no ops; kernels are not checked",
                   plugin.file());
  if (!result.empty()) return result;
  throw InvalidArgument(fmt::format("[check-op] {} has no op '{}'; it has {}", plugin.file(),
                                    invocation.value("--op"), fmt::join(names, ", ")));
}

int run_check_op(const Invocation& invocation) {
  const plugin::Plugin& plugin = plugin::load_plugin(invocation.positionals.at(0));
  const std::int64_t limit = invocation.integer("--limit", kDefaultLimit);
  ANABATIC_REQUIRE(limit >= 1 && limit <= 86400,
                   "[check-op] --limit: expected 1 to 86400 seconds, got {}", limit);
  const std::vector<const plugin::PluginOp*> ops = ops_to_check(plugin, invocation);
  int num_failed = 0;
  for (const plugin::PluginOp* op : ops) {
    flush_output();
    const auto report = plugin::check::check_op(*op, std::chrono::seconds(limit));
    print_output("{}\n", plugin::check::to_string(report, *op));
    for (const auto* lines : {&report.failures, &report.notes})
      for (const std::string& line : *lines) print_output("  {}\n", line);
    num_failed += report.failures.empty() ? 0 : 1;
  }
  for (const plugin::PluginKernel& kernel : plugin.kernels())
    print_output("kernel {} of {}: not checked\n", kernel.name(), kernel.op());
  print_output("{} ops checked, {} failed\n", ops.size(), num_failed);
  return num_failed == 0 ? 0 : 1;
}

}  // namespace

const Verb& check_op_verb() {
  static const Verb verb{
      "check-op",
      "whether the ops of a plugin keep to its contract: shapes, bits, gradients and memory",
      "LIB",
      {{.name = "--op", .help = "checks this op alone", .value = "NAME"},
       {.name = "--limit", .help = "seconds that a case may take; default 60", .value = "SECONDS"}},
      false,
      run_check_op};
  return verb;
}

}  // namespace anabatic::cli
