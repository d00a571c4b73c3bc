// SPDX-License-Identifier: Apache-2.0
// Counts what every thread of the test binary allocates with new.
#pragma once
#include <cstddef>
#include <cstdint>

namespace anabatic::io {

std::int64_t num_allocations();
// The largest single request since the last call of reset_largest_allocation().
std::size_t largest_allocation_bytes();
void reset_largest_allocation();

}  // namespace anabatic::io
