// SPDX-License-Identifier: Apache-2.0
#include "device/probe.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "device/memory.h"
#include "device/thread_team.h"

namespace anabatic::device {
namespace {

using Loop = double (*)(long);

double seconds_since(Clock now, std::int64_t begin) {
  return std::max(1e-9 * static_cast<double>(now() - begin), 1e-9);
}

// Rounds long enough that waking the team does not show: about 5 ms.
long rounds_of(Loop loop) {
  long rounds = 1000;
  for (;;) {
    const std::int64_t begin = wall_nanoseconds();
    loop(rounds);
    if (seconds_since(wall_nanoseconds, begin) > 4e-3 || rounds > (1L << 30)) return rounds;
    rounds *= 2;
  }
}

Loop fp32_loop(const spec::DeviceSpec& spec) {
#if defined(__x86_64__)
  if (spec.has("avx512f")) return fp32_loop_avx512;
  if (spec.has("avx2")) return fp32_loop_avx2;
#endif
  (void)spec;
  return fp32_loop_portable;
}

Loop bf16_loop(const spec::DeviceSpec& spec) {
#if defined(__x86_64__)
  if (spec.has("amx_bf16")) return bf16_loop_amx;
  if (spec.has("avx512_bf16")) return bf16_loop_avx512;
#endif
  return fp32_loop(spec);
}

Loop int8_loop(const spec::DeviceSpec& spec) {
#if defined(__x86_64__)
  if (spec.has("avx512_vnni")) return int8_loop_avx512;
  if (spec.has("avx_vnni")) return int8_loop_avx_vnni;
#endif
  return fp32_loop(spec);
}

struct CopyBuffers {
  Memory source, target;
};

// Larger than the caches where the system's limits leave room for that.
CopyBuffers copy_buffers(const spec::DeviceSpec& spec) {
  constexpr std::int64_t kLeast = std::int64_t{32} << 20, kMost = std::int64_t{256} << 20;
  for (std::int64_t bytes = std::clamp(2 * spec.l3_bytes, kLeast, kMost);; bytes /= 2) {
    try {
      return {Memory(bytes), Memory(bytes)};
    } catch (const ResourceError&) {
      if (bytes / 2 < kLeast) throw;
    }
  }
}

// Plain stores, as most kernels write: each line of the target is read before it is written, which
// the figure does not count. The barrier keeps the loop from becoming a memcpy, which would stream.
void copy_plain(std::byte* __restrict target, const std::byte* __restrict source,
                std::int64_t bytes) {
  constexpr std::int64_t kLine = 64;
  std::int64_t at = 0;
  for (; at + kLine <= bytes; at += kLine) {
    __builtin_memcpy(target + at, source + at, kLine);
    asm volatile("" : : : "memory");
  }
  for (; at < bytes; ++at) target[at] = source[at];
}

// Noise only slows.
template <class Measure>
double best_of(int rounds, Measure&& measure) {
  double best = 0;
  for (int round = 0; round < rounds; ++round) best = std::max(best, measure());
  return best;
}

// FLOP/s of all threads; `flops` has room for what each of them does.
double rate_of(ThreadTeam& team, Loop loop, long rounds, Clock now, std::vector<double>& flops) {
  const std::int64_t begin = now();
  team.run([&](int thread) { flops[static_cast<std::size_t>(thread)] = loop(rounds); });
  const double elapsed = seconds_since(now, begin);
  return std::accumulate(flops.begin(), flops.end(), 0.0) / elapsed;
}

}  // namespace

struct PeakProbe::Impl {
  ThreadTeam& team;
  Clock now;
  Loop fp32, bf16, int8;
  long fp32_rounds, bf16_rounds, int8_rounds;
  CopyBuffers copy;
  std::vector<double> flops;  // a thread

  Impl(ThreadTeam& the_team, const spec::DeviceSpec& spec, Clock clock)
      : team(the_team),
        now(clock),
        fp32(fp32_loop(spec)),
        bf16(bf16_loop(spec)),
        int8(int8_loop(spec)),
        fp32_rounds(rounds_of(fp32)),
        bf16_rounds(bf16 == fp32 ? fp32_rounds : rounds_of(bf16)),
        int8_rounds(int8 == fp32 ? fp32_rounds : rounds_of(int8)),
        copy(copy_buffers(spec)),
        flops(static_cast<std::size_t>(the_team.num_threads())) {}

  double rate(Loop loop, long rounds) { return rate_of(team, loop, rounds, now, flops); }
};

PeakProbe::PeakProbe(ThreadTeam& team, const spec::DeviceSpec& spec, Clock now)
    : impl_(std::make_unique<Impl>(team, spec, now)) {}
PeakProbe::~PeakProbe() = default;

double PeakProbe::fp32_flops_per_second() { return impl_->rate(impl_->fp32, impl_->fp32_rounds); }
double PeakProbe::bf16_flops_per_second() { return impl_->rate(impl_->bf16, impl_->bf16_rounds); }
double PeakProbe::int8_ops_per_second() { return impl_->rate(impl_->int8, impl_->int8_rounds); }

double PeakProbe::copy_bytes_per_second() {
  const std::int64_t begin = impl_->now();
  const Memory &source = impl_->copy.source, &target = impl_->copy.target;
  impl_->team.for_range(source.bytes(), 4096, [&](std::int64_t first, std::int64_t last) {
    copy_plain(target.data() + first, source.data() + first, last - first);
  });
  return 2.0 * static_cast<double>(source.bytes()) / seconds_since(impl_->now, begin);
}

ProbeResult probe(ThreadTeam& team, const spec::DeviceSpec& spec) {
  PeakProbe probe(team, spec);
  ProbeResult result;
  result.fp32_flops_per_second = best_of(5, [&] { return probe.fp32_flops_per_second(); });
  result.bf16_flops_per_second = result.int8_ops_per_second = result.fp32_flops_per_second;
  if (bf16_loop(spec) != fp32_loop(spec))
    result.bf16_flops_per_second = best_of(5, [&] { return probe.bf16_flops_per_second(); });
  if (int8_loop(spec) != fp32_loop(spec))
    result.int8_ops_per_second = best_of(5, [&] { return probe.int8_ops_per_second(); });
  result.copy_bytes_per_second = best_of(3, [&] { return probe.copy_bytes_per_second(); });
  return result;
}

double peak_flops_per_second(ThreadTeam& team, const spec::DeviceSpec& spec,
                             spec::Precision precision) {
  const Loop loop = precision == spec::Precision::kInt8   ? int8_loop(spec)
                    : precision == spec::Precision::kBf16 ? bf16_loop(spec)
                                                          : fp32_loop(spec);
  const long rounds = rounds_of(loop);
  std::vector<double> flops(static_cast<std::size_t>(team.num_threads()));
  return best_of(5, [&] { return rate_of(team, loop, rounds, wall_nanoseconds, flops); });
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
