// SPDX-License-Identifier: Apache-2.0
#include "train/ranks/run_mesh.h"

#include <limits>
#include <string>
#include <string_view>

#include "base/error.h"
#include "spec/cluster_file.h"
#include "spec/mesh_request.h"

namespace anabatic::train {
namespace {

// Keys are within bounds of their own.
std::int32_t narrow(std::int64_t number) {
  ANABATIC_CHECK(number >= 0 && number <= std::numeric_limits<std::int32_t>::max(),
                 "[parallel] {} ranks", number);
  return static_cast<std::int32_t>(number);
}

// The forms that are not there yet, one line each. Each line goes with what it waits for.
void require_forms(const RunConfig::Parallel& parallel) {
  std::string missing;
  const auto need = [&](bool is_there, std::string_view key, const auto& value,
                        std::string_view what) {
    if (!is_there) missing += fmt::format("\n  {}: {}: {} is not there yet", key, value, what);
  };
  need(parallel.tensor == 1, "parallel.tensor", parallel.tensor, "cutting matrices over ranks");
  need(parallel.context == 1, "parallel.context", parallel.context, "cutting samples over ranks");
  need(parallel.pipeline == 1, "parallel.pipeline", parallel.pipeline,
       "a pipeline of stages of layers");
  if (!missing.empty())
    throw Unsupported("[parallel] expected keys whose form is there, got:" + missing);
}

}  // namespace

std::int32_t num_ranks(const RunConfig& run) {
  return narrow(run.parallel.world == RunConfig::Parallel::kStarted ? run.parallel.local_ranks
                                                                    : run.parallel.world);
}

spec::Mesh mesh_of(const RunConfig& run, const MeshLimits& limits) {
  const RunConfig::Parallel& parallel = run.parallel;
  spec::MeshRequest request{.world = num_ranks(run),
                            .tensor = narrow(parallel.tensor),
                            .context = narrow(parallel.context),
                            .pipeline = narrow(parallel.pipeline),
                            .expert = narrow(parallel.expert),
                            .num_samples = limits.num_samples};
  if (parallel.data != RunConfig::Parallel::kRest) request.data = narrow(parallel.data);
  if (run.train.gradient_leaves != RunConfig::Train::kOneADataRank)
    request.gradient_leaves = narrow(run.train.gradient_leaves);
  if (limits.num_experts.value_or(0) > 0) request.num_experts = narrow(*limits.num_experts);
  const spec::Mesh mesh = spec::mesh_of(request);
  require_forms(parallel);
  return mesh;
}

std::int64_t leaves_of_rank(const RunConfig& run) {
  if (run.train.gradient_leaves == RunConfig::Train::kOneADataRank) return 1;
  const std::int64_t leaves = run.train.gradient_leaves / mesh_of(run).data,
                     micro_batches = run.train.gradient_accumulation_steps;
  ANABATIC_REQUIRE(micro_batches % leaves == 0,
                   "[parallel] train.gradient_leaves: {}: expected a multiple of {} "
                   "micro-batches a rank, one or more a leaf, got "
                   "train.gradient_accumulation_steps: {}; the nearest are {}",
                   run.train.gradient_leaves, leaves, micro_batches,
                   micro_batches < leaves
                       ? fmt::format("{}", leaves)
                       : fmt::format("{} and {}", micro_batches / leaves * leaves,
                                     (micro_batches / leaves + 1) * leaves));
  return leaves;
}

std::optional<spec::ClusterSpec> emulated_cluster(const RunConfig& run) {
  if (run.parallel.emulate.empty()) return std::nullopt;
  spec::ClusterSpec cluster = spec::read_cluster(run.parallel.emulate);
  ANABATIC_REQUIRE(cluster.num_ranks() >= num_ranks(run),
                   "[parallel] parallel.emulate: {}: expected devices for {} ranks, got {}",
                   run.parallel.emulate, num_ranks(run), cluster.num_ranks());
  return cluster;
}

void require_world(const RunConfig& run, std::int64_t started) {
  ANABATIC_REQUIRE(
      run.parallel.world == RunConfig::Parallel::kStarted || run.parallel.world == started,
      "[parallel] expected parallel.world: auto or {}, the ranks that were started, got {}: only "
      "`anabatic plan` takes another number",
      started, run.parallel.world);
}

}  // namespace anabatic::train
