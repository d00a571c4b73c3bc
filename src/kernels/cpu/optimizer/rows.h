// SPDX-License-Identifier: Apache-2.0
// What the rows of optimizer_step take, and of which states they tell a watch.
#pragma once
#include "kernels/kernel.h"

namespace anabatic::kernels::cpu {

// States in rows or in panels, each of a dtype that it may have.
Support supports_update(const spec::Problem& problem);

// The outputs that a watch is told of, as bits: moments, and the lower 16 bits of a split
// parameter. None with moments in 8 bits, and none where the sweep writes both packings.
std::uint32_t watched_states(const spec::Attributes& attributes,
                             std::span<const TensorType> outputs);

// The bits of a mask for states laid out as `state` (mask_bits.h), which begin a workspace.
std::int64_t mask_bits_bytes(const TensorType& state);
std::int64_t update_workspace_bytes(const spec::Problem& problem);

}  // namespace anabatic::kernels::cpu
