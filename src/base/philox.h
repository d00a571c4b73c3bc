// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011):
// counter-based random numbers, so that any thread count, sharding or recompute draws the same
// ones. Key by (seed, step, op), count by logical element.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace anabatic {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key);

// A stream of draws: `seed` and `stream` name it, `element` picks the draw. Pure functions of their
// arguments.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t element);
double random_uniform(std::uint64_t seed, std::uint64_t stream,
                      std::uint64_t element);  // in [0, 1)
double random_normal(std::uint64_t seed, std::uint64_t stream,
                     std::uint64_t element);  // mean 0, deviation 1
std::uint64_t random_below(std::uint64_t seed, std::uint64_t stream, std::uint64_t element,
                           std::uint64_t bound);
// The stream of a name, in every process the same: its FNV-1a hash of 64 bits.
std::uint64_t stream_of(std::string_view name);

}  // namespace anabatic
