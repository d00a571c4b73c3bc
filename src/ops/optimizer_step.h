// SPDX-License-Identifier: Apache-2.0
// The update of one parameter by an optimizer, in every form of parameter, moments and packings
// (spec/optimizer_step.h). Rule "adamw": decoupled weight decay (Loshchilov and Hutter, 2019), as
// PyTorch computes it.
#pragma once
#include <optional>

#include "ir/op_schema.h"
#include "spec/optimizer_step.h"

namespace anabatic::ops {

// Elements of a group of the weight grids that an update can round to: the sweep has so many of a
// row at hand.
inline constexpr std::int64_t kGroupOfUpdate = 32;

extern const ir::OpSchema kOptimizerStep;

// The form of a node of this op; nullopt for another op.
std::optional<spec::OptimizerStep> optimizer_step_of(const ir::Node& node);

}  // namespace anabatic::ops
