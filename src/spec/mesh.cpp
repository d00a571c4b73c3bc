// SPDX-License-Identifier: Apache-2.0
#include "spec/mesh.h"

#include <algorithm>

#include "base/error.h"

namespace anabatic::spec {
namespace {

constexpr std::array kDenseOrder{Axis::kTensor, Axis::kContext, Axis::kData, Axis::kPipeline};
constexpr std::array kExpertOrder{Axis::kExpert, Axis::kExpertData, Axis::kPipeline};

template <class Order>
void add_coordinates(const Mesh& mesh, const Order& fastest_first, std::int32_t rank,
                     Coordinates& at) {
  for (const Axis axis : fastest_first) {
    at[axis] = rank % mesh.size(axis);
    rank /= mesh.size(axis);
  }
}

}  // namespace

std::string_view to_string(Axis axis) {
  switch (axis) {
    case Axis::kTensor:
      return "tensor";
    case Axis::kContext:
      return "context";
    case Axis::kData:
      return "data";
    case Axis::kExpert:
      return "expert";
    case Axis::kExpertData:
      return "expert data";
    case Axis::kPipeline:
      return "pipeline";
  }
  ANABATIC_CHECK(false, "[mesh] unknown code {} of an axis", static_cast<int>(axis));
}

std::string to_string(Axes axes) {
  std::string result;
  for (const Axis axis : kAxes)
    if (axes.contains(axis)) result.append(result.empty() ? "" : ", ").append(to_string(axis));
  return result;
}

std::int32_t Mesh::size(Axis axis) const {
  switch (axis) {
    case Axis::kTensor:
      return tensor;
    case Axis::kContext:
      return context;
    case Axis::kData:
      return data;
    case Axis::kExpert:
      return expert;
    case Axis::kExpertData:
      return expert_data();
    case Axis::kPipeline:
      return pipeline;
  }
  ANABATIC_CHECK(false, "[mesh] unknown code {} of an axis", static_cast<int>(axis));
}

std::int32_t Mesh::size(Axes axes) const {
  std::int32_t result = 1;
  for (const Axis axis : kAxes)
    if (axes.contains(axis)) result *= size(axis);
  return result;
}

std::string to_string(const Mesh& mesh) {
  return fmt::format("tensor {} · context {} · data {} · pipeline {}, expert {}", mesh.tensor,
                     mesh.context, mesh.data, mesh.pipeline, mesh.expert);
}

Coordinates coordinates_of(const Mesh& mesh, std::int32_t rank) {
  ANABATIC_CHECK(rank >= 0 && rank < mesh.world(), "[mesh] rank {} of {}", rank, mesh.world());
  Coordinates at;
  add_coordinates(mesh, kDenseOrder, rank, at);
  add_coordinates(mesh, kExpertOrder, rank, at);
  return at;
}

std::int32_t rank_of(const Mesh& mesh, const std::vector<std::pair<Axis, std::int32_t>>& places) {
  for (std::int32_t rank = 0; rank < mesh.world(); ++rank) {
    const Coordinates coordinates = coordinates_of(mesh, rank);
    if (std::ranges::all_of(
            places, [&](const auto& place) { return coordinates[place.first] == place.second; }))
      return rank;
  }
  ANABATIC_CHECK(false, "[mesh] no rank at these places of {}", to_string(mesh));
}

std::vector<std::int32_t> group_of(const Mesh& mesh, Axes axes, std::int32_t rank) {
  const bool is_dense = (axes - kDenseGrid).is_empty();
  ANABATIC_CHECK(is_dense || (axes - kExpertGrid).is_empty(),
                 "[mesh] a group along axes of both grids: {}", to_string(axes));
  const Axes others = (is_dense ? kDenseGrid : kExpertGrid) - axes;
  const Coordinates mine = coordinates_of(mesh, rank);
  std::vector<std::int32_t> group;
  for (std::int32_t peer = 0; peer < mesh.world(); ++peer) {
    const Coordinates at = coordinates_of(mesh, peer);
    bool is_member = true;
    for (const Axis axis : kAxes)
      is_member = is_member && (!others.contains(axis) || at[axis] == mine[axis]);
    if (is_member) group.push_back(peer);
  }
  return group;
}

}  // namespace anabatic::spec
