// SPDX-License-Identifier: Apache-2.0
#include "lower/compile.h"

#include "base/log.h"
#include "base/text.h"
#include "lower/lower.h"
#include "ops/table.h"
#include "passes/pipelines.h"

namespace anabatic::lower {

Compiled compile(ir::Graph forward, const CompileOptions& options, const spec::DeviceSpec& device) {
  Compiled result{.graph = std::move(forward)};
  const std::vector<passes::Pass> pipeline =
      options.training ? passes::training_pipeline() : passes::inference_pipeline();
  result.passes = passes::run_passes(
      result.graph, pipeline,
      {.options = {.precision = options.precision,
                   .optimizer = options.optimizer,
                   .pack_transposed = options.pack_transposed,
                   .with_update = options.with_update,
                   .state_layouts = &options.state_layouts},
       .find_op = ops::find_op},
      {.disabled = options.disabled_passes, .dump_directory = options.dump_directory});

  plan::DiskOptions disk = options.disk;
  disk.optimizer_state &= options.training && options.with_update;
  std::vector<std::string> explanation;
  result.plan = plan::make_plan(result.graph, device,
                                {.trivial = options.trivial_planners,
                                 .only_kernels = options.only_kernels,
                                 .disk = disk,
                                 .explanation = options.explain_dispatch ? &explanation : nullptr});
  for (const std::string& line : explanation) log_line(LogLevel::kInfo, line);
  result.program = lower(result.graph, result.plan, device);
  verify(result.graph, result.plan, result.program);

  if (!options.dump_directory.empty()) {
    const std::filesystem::path directory(options.dump_directory);
    write_file_atomically(directory / "plan.txt", plan::print(result.graph, result.plan));
    write_file_atomically(directory / "program.txt", runtime::print(result.program));
  }
  return result;
}

}  // namespace anabatic::lower
