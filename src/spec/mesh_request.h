// SPDX-License-Identifier: Apache-2.0
// What a user asks for as a mesh, and all that is wrong with it at once: each equation that is
// broken, with the nearest setting that satisfies it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spec/mesh.h"

namespace anabatic::spec {

struct MeshRequest {
  std::int32_t world = 1;              // ranks that were started
  std::optional<std::int32_t> data{};  // absent: world / (tensor · context · pipeline)
  std::int32_t tensor = 1, context = 1, pipeline = 1, expert = 1;
  // What has to fit the mesh. Absent: not checked.
  std::optional<std::int32_t> num_experts{};  // of a layer
  // Of the tree that sums a step's gradients: data times a power of two.
  std::optional<std::int32_t> gradient_leaves{};
  std::optional<std::int64_t> num_samples{};  // that data ranks can have one each of
  bool operator==(const MeshRequest&) const = default;
};

// A key takes another value.
struct MeshChange {
  std::string key;  // "parallel.data", "train.gradient_leaves"; "ranks": how many are started
  std::int64_t value = 0;
  bool operator==(const MeshChange&) const = default;
};

struct MeshProblem {
  std::string equation;  // what was expected and what was found
  // Of the nearest valid setting, what this equation needs. Empty where the changes for other
  // problems are enough.
  std::vector<MeshChange> nearest;
};
std::string to_string(const MeshProblem& problem);

// Everything that is wrong; empty: mesh_of gives the mesh. One nearest valid setting serves all
// problems: the request with the changes of each is valid. It keeps the ranks that were started
// unless there are fewer samples. It never enlarges tensor, context or pipeline, for they cost most
// to change. Of what is left it takes the smallest ratios of old to new values.
std::vector<MeshProblem> problems_of(const MeshRequest& request);

MeshRequest with_changes(MeshRequest request, const std::vector<MeshChange>& changes);

// InvalidArgument with all problems, one a line.
Mesh mesh_of(const MeshRequest& request);

}  // namespace anabatic::spec
