// SPDX-License-Identifier: Apache-2.0
// Clocks that measurements choose between.
#pragma once
#include <cstdint>

namespace anabatic::device {

using Clock = std::int64_t (*)();  // nanoseconds since some fixed moment

std::int64_t wall_nanoseconds();  // std::chrono::steady_clock
// Of the calling thread: on a machine shared with others it counts only its own time, so that work
// of one thread, and the probes beside it, can be compared all the same.
std::int64_t thread_cpu_nanoseconds();

}  // namespace anabatic::device
