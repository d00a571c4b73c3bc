// SPDX-License-Identifier: Apache-2.0
// Which ranks hold which rows of a state: experts lie along the expert axis, what an optimizer has
// of a parameter along the ranks that update it.
#pragma once
#include <cstdint>
#include <vector>

#include "spec/mesh.h"
#include "spec/state.h"
#include "tensor/tensor_type.h"

namespace anabatic::train {

struct HeldPart {
  TensorType type{};  // of these rows
  spec::Rows rows{};
  std::vector<std::int32_t> ranks{};  // that hold them, ascending
};

// All parts of a state, ascending by rows, of which `own` are the rows of this rank. `of_parameter`
// are those that it has of the parameter that the state belongs to, and `of_rank` is their type
// with the state's dtype and layout.
std::vector<HeldPart> held_parts(const spec::Mesh& mesh, const TensorType& of_rank,
                                 const spec::Rows& of_parameter, const spec::Rows& own);

}  // namespace anabatic::train
