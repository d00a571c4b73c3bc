// SPDX-License-Identifier: Apache-2.0
// How the ranks of a run are laid out: two grids over one world, and who forms a group with whom.
// All of it is plain values and pure functions.
//
//   dense parameters   tensor (fastest), context, data, pipeline (slowest)
//   experts            expert (fastest), expert data, pipeline (slowest)
//
// with expert · expert data = tensor · context · data: both grids have the same pipeline stages.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "spec/enum_set.h"

namespace anabatic::spec {

enum class Axis : std::uint8_t { kTensor, kContext, kData, kExpert, kExpertData, kPipeline };
inline constexpr std::array kAxes{Axis::kTensor, Axis::kContext,    Axis::kData,
                                  Axis::kExpert, Axis::kExpertData, Axis::kPipeline};
std::string_view to_string(Axis axis);  // "tensor", "expert data"

using Axes = EnumSet<Axis>;

inline constexpr Axes kDenseGrid{Axis::kTensor, Axis::kContext, Axis::kData, Axis::kPipeline};
inline constexpr Axes kExpertGrid{Axis::kExpert, Axis::kExpertData, Axis::kPipeline};
std::string to_string(Axes axes);  // "data, pipeline"

// The axis along which ranks hold the same rows of a parameter, and sum their gradients. Experts
// are not whole where ranks share them.
constexpr Axis data_axis(bool is_whole) { return is_whole ? Axis::kData : Axis::kExpertData; }

// Ranks along each axis, all at least 1. `expert` divides ranks_of_stage().
struct Mesh {
  std::int32_t tensor = 1, context = 1, data = 1, pipeline = 1, expert = 1;

  std::int32_t ranks_of_stage() const { return tensor * context * data; }
  std::int32_t world() const { return ranks_of_stage() * pipeline; }
  std::int32_t expert_data() const { return ranks_of_stage() / expert; }
  std::int32_t size(Axis axis) const;
  std::int32_t size(Axes axes) const;  // of a group along these axes of one grid
  bool operator==(const Mesh&) const = default;
};
std::string to_string(const Mesh& mesh);  // "tensor 2 · context 1 · data 4 · pipeline 1, expert 4"

// Where a rank is in both grids, by axis.
class Coordinates {
 public:
  std::int32_t operator[](Axis axis) const { return at_[static_cast<std::size_t>(axis)]; }
  std::int32_t& operator[](Axis axis) { return at_[static_cast<std::size_t>(axis)]; }
  bool operator==(const Coordinates&) const = default;

 private:
  std::array<std::int32_t, kAxes.size()> at_{};
};

// InternalError for a rank outside the world, here and below.
Coordinates coordinates_of(const Mesh& mesh, std::int32_t rank);

// The first rank that is at these places.
std::int32_t rank_of(const Mesh& mesh, const std::vector<std::pair<Axis, std::int32_t>>& places);

// The ranks that differ from `rank` along these axes alone, itself included. They ascend, so that
// the fastest axis varies first, and each member gets the same list. No axes: itself.
// InternalError when the axes are not of one grid.
std::vector<std::int32_t> group_of(const Mesh& mesh, Axes axes, std::int32_t rank);

}  // namespace anabatic::spec
