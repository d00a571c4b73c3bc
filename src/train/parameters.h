// SPDX-License-Identifier: Apache-2.0
// States of the store as fp32 arrays.
#pragma once
#include <span>

#include "base/name.h"
#include "runtime/state_store.h"

namespace anabatic::train {

// The elements of an f32 state in row-major order. InternalError for another dtype or layout.
std::span<float> state_values(runtime::StateStore& store, Name state);

}  // namespace anabatic::train
