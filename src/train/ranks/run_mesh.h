// SPDX-License-Identifier: Apache-2.0
// How the ranks of a run are laid out, from its keys.
#pragma once
#include <cstdint>
#include <optional>

#include "spec/cluster.h"
#include "spec/mesh.h"
#include "train/run_config.h"

namespace anabatic::train {

// What a mesh has to fit besides the number of ranks, as far as it is known.
struct MeshLimits {
  std::optional<std::int64_t> num_experts{};  // of a layer; 0 in a dense model
  std::optional<std::int64_t> num_samples{};  // of the training data
};

// Ranks of a run: parallel.world where it is given, else those of this process.
std::int32_t num_ranks(const RunConfig& run);

// InvalidArgument with every equation of the keys that is broken, and the nearest setting that
// mends all. Unsupported, with what is missing, where a key asks for a form that is not there.
spec::Mesh mesh_of(const RunConfig& run, const MeshLimits& limits = {});

// Leaves of a step that each rank has (spec/step.h). InvalidArgument where its micro-batches cannot
// be divided into as many.
std::int64_t leaves_of_rank(const RunConfig& run);

// The links of parallel.emulate; none: the machine's own. InvalidArgument where its file is wrong,
// or has too few devices.
std::optional<spec::ClusterSpec> emulated_cluster(const RunConfig& run);

// Throws InvalidArgument where the run is planned for another number of ranks than were started.
void require_world(const RunConfig& run, std::int64_t started);

}  // namespace anabatic::train
