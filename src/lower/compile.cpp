// SPDX-License-Identifier: Apache-2.0
#include "lower/compile.h"

#include <fmt/core.h>

#include <filesystem>
#include <utility>

#include "base/text.h"
#include "lower/lower.h"
#include "plan/budget_error.h"
#include "search/search.h"

namespace anabatic::lower {
namespace {

void dump(const Compiled& compiled, const std::filesystem::path& directory) {
  if (!compiled.memory.choices.empty())
    write_file_atomically(directory / fmt::format("{:02}_decided.ir", compiled.passes.size() + 1),
                          ir::print(compiled.graph));
  write_file_atomically(directory / "plan.txt", plan::print(compiled.graph, compiled.plan));
  if (compiled.first)
    write_file_atomically(directory / "first_plan.txt",
                          plan::print(compiled.first->graph, compiled.first->plan));
  write_file_atomically(directory / "program.txt", runtime::print(compiled.program));
}

}  // namespace

plan::Outcome<Compiled> try_compile(ir::Graph forward, const CompileOptions& options,
                                    const spec::DeviceSpec& device) {
  search::Outcome step = search::find_step(std::move(forward), options, device);
  if (!step) return step.refusal();
  Compiled result{*std::move(step), {}};
  result.program = lower(result, device);
  if (!options.dump_directory.empty()) dump(result, options.dump_directory);
  return result;
}

Compiled compile(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device) {
  return plan::value_or_throw(try_compile(std::move(forward), options, device));
}

}  // namespace anabatic::lower
