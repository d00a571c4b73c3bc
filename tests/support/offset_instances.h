// SPDX-License-Identifier: Apache-2.0
// Items to place in an arena: hard ones that are known to fit, and those of a training step.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/liveness.h"

namespace anabatic::testing {

// A rectangle of positions and units cut into `count` boxes, shuffled: they fill an arena of
// `units` * unit_bytes without a gap, so every position's load is the capacity.
std::vector<analysis::LiveBytes> cut_rectangle(std::uint64_t seed, std::size_t count,
                                               std::int32_t length, std::int64_t units,
                                               std::int64_t unit_bytes);

// `layers` layers forward and back: what is saved is alive until the layer's backward, the rest for
// a few nodes. 8 saved and 12 passing items a layer, of a few sizes.
std::vector<analysis::LiveBytes> training_step(std::uint64_t seed, std::int32_t layers);

// Every offset a multiple of the alignment, every item below `bytes`, none over another: an
// independent check of all pairs. Empty when all is well.
std::string placement_fault(const std::vector<analysis::LiveBytes>& items,
                            const std::vector<std::int64_t>& offsets, std::int64_t bytes,
                            std::int64_t alignment);

}  // namespace anabatic::testing
