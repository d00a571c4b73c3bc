// SPDX-License-Identifier: Apache-2.0
#include "support/plan_changes.h"

namespace anabatic::testing {

const std::vector<PlanChange>& plan_changes() {
  using train::RunConfig;
  static const std::vector<PlanChange> changes{
      {"threads", [](RunConfig& run) { run.device.threads = 3; }},
      {"planners", [](RunConfig& run) { run.compiler.trivial_planners = true; }},
      {"poison", [](RunConfig& run) { run.compiler.poison = true; }},
      {"one packing", [](RunConfig& run) { run.compiler.pack_transposed = false; }},
      {"no packings", [](RunConfig& run) { run.compiler.keep_packings = false; }},
      {"recompute",
       [](RunConfig& run) {
         run.memory.recompute = {"attention", "experts"};
       }},
      {"passes",
       [](RunConfig& run) {
         for (const char* pass :
              {"pack_weights", "panel_states", "split_parameters", "fuse_rope", "fuse_moe_permute",
               "fuse_optimizer", "fuse_norm_residual", "fuse_norm_linear"})
           run.compiler.disable_passes.emplace_back(pass);
       }},
      {"optimizer state on disk",
       [](RunConfig& run) {
         run.memory.optimizer_state = "disk";
         run.memory.swap_slice = 4096;
       }},
      {"parameters on disk", [](RunConfig& run) {
         run.memory.optimizer_state = run.memory.masters = run.memory.parameters = "disk";
       }}};
  return changes;
}

}  // namespace anabatic::testing
