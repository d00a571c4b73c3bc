// SPDX-License-Identifier: Apache-2.0
// Makes derived states (bf16 copies, packings) equal to their primaries.
#pragma once
#include <cstdint>
#include <limits>
#include <span>

#include "ir/graph.h"
#include "spec/device_spec.h"

namespace anabatic::device {
class ThreadTeam;
}
namespace anabatic::runtime {
class StateStore;
}

namespace anabatic::train {

// Whether weights are rounded to their grids: from `delay` updates on.
struct GridPhase {
  std::int64_t delay = 0, updates = std::numeric_limits<std::int32_t>::max();
};

// By a program of the very ops and kernels that an update uses. `store` holds the states and their
// primaries.
void refresh_derived(std::span<const ir::State> states, runtime::StateStore& store,
                     device::ThreadTeam& team, const spec::DeviceSpec& device,
                     const GridPhase& phase = {});

}  // namespace anabatic::train
