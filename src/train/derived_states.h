// SPDX-License-Identifier: Apache-2.0
// Makes derived states (bf16 copies, packings) equal to their primaries.
#pragma once
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

// By a program of the very ops and kernels that an update uses. `store` holds the states and their
// primaries.
void refresh_derived(std::span<const ir::State> states, runtime::StateStore& store,
                     device::ThreadTeam& team, const spec::DeviceSpec& device);

}  // namespace anabatic::train
