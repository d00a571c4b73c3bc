// SPDX-License-Identifier: Apache-2.0
// Clocks for measurements.
#pragma once
#include <cstdint>

namespace anabatic::device {

using Clock = std::int64_t (*)();  // nanoseconds since some fixed moment

std::int64_t wall_nanoseconds();  // std::chrono::steady_clock
// CPU time of the calling thread. On a machine that others use too, it makes times of one thread
// comparable, and so the probes that run between them.
std::int64_t thread_cpu_nanoseconds();

}  // namespace anabatic::device
