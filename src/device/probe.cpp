// SPDX-License-Identifier: Apache-2.0
#include "device/probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "device/memory.h"
#include "device/thread_team.h"

namespace anabatic::device {
namespace {

using Clock = std::chrono::steady_clock;
using Loop = double (*)(long);

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Rounds long enough that waking the team does not show: about 5 ms; the best of five, since noise
// only slows.
double rate(ThreadTeam& team, Loop loop) {
  long rounds = 1000;
  for (;;) {
    const auto begin = Clock::now();
    loop(rounds);
    if (seconds_since(begin) > 4e-3 || rounds > (1L << 30)) break;
    rounds *= 2;
  }
  std::vector<double> flops(static_cast<std::size_t>(team.num_threads()));
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto begin = Clock::now();
    team.run([&](int thread) { flops[static_cast<std::size_t>(thread)] = loop(rounds); });
    double total = 0;
    const double elapsed = seconds_since(begin);
    for (const double value : flops) total += value;
    best = std::max(best, total / elapsed);
  }
  return best;
}

double copy_rate(ThreadTeam& team, std::int64_t last_cache_bytes) {
  const std::int64_t bytes = std::clamp<std::int64_t>(2 * last_cache_bytes, std::int64_t{32} << 20,
                                                      std::int64_t{256} << 20);
  const Memory source(bytes), target(bytes);
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const auto begin = Clock::now();
    team.for_range(bytes, 4096, [&](std::int64_t first, std::int64_t last) {
      std::memcpy(target.data() + first, source.data() + first,
                  static_cast<std::size_t>(last - first));
    });
    best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds_since(begin));
  }
  return best;
}

}  // namespace

ProbeResult probe(ThreadTeam& team, const spec::DeviceSpec& spec) {
  Loop fp32 = fp32_loop_portable;
#if defined(__x86_64__)
  if (spec.has("avx512f")) {
    fp32 = fp32_loop_avx512;
  } else if (spec.has("avx2")) {
    fp32 = fp32_loop_avx2;
  }
#endif
  ProbeResult result;
  result.fp32_flops_per_second = rate(team, fp32);
  result.bf16_flops_per_second = result.fp32_flops_per_second;
#if defined(__x86_64__)
  if (spec.has("avx512_bf16")) result.bf16_flops_per_second = rate(team, bf16_loop_avx512);
#endif
  result.copy_bytes_per_second = copy_rate(team, spec.l3_bytes);
  return result;
}

// Eight chains of four lanes: enough for the baseline vector unit of any 64-bit machine.
double fp32_loop_portable(long rounds) {
  constexpr int kLanes = 32;
  float sums[kLanes] = {};
  for (long round = 0; round < rounds; ++round)
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] = sums[lane] * 0.999f + 1e-3f;
  float total = 0;
  for (const float sum : sums) total += sum;
  // The compiler must believe that the sum is used.
  asm volatile("" : : "m"(total));
  return 2.0 * kLanes * static_cast<double>(rounds);
}

}  // namespace anabatic::device
