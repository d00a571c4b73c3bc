// SPDX-License-Identifier: Apache-2.0
// Measures the peak speed of a thread team: the denominators of MFU and of shares of a peak.
#pragma once
#include <memory>

#include "device/clock.h"
#include "spec/device_spec.h"
#include "spec/training.h"

namespace anabatic::device {

class ThreadTeam;

struct ProbeResult {
  double fp32_flops_per_second =
      0;  // register-resident fused multiply-adds of the widest vectors, all threads
  double bf16_flops_per_second = 0;  // of AMX, else VDPBF16PS, else the fp32 rate
  double int8_ops_per_second = 0;    // of VPDPBUSD, else the fp32 rate
  double copy_bytes_per_second = 0;  // read + written bytes of a copy larger than the last cache
};

// The same quantities in short rounds of about 5 ms, to alternate with the work that is measured.
class PeakProbe {
 public:
  // Finds the length of a round and allocates the two buffers of the copy.
  PeakProbe(ThreadTeam& team, const spec::DeviceSpec& spec, Clock now = wall_nanoseconds);
  ~PeakProbe();
  PeakProbe(const PeakProbe&) = delete;
  PeakProbe& operator=(const PeakProbe&) = delete;

  double fp32_flops_per_second();
  double bf16_flops_per_second();
  double int8_ops_per_second();
  double copy_bytes_per_second();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The best of a few short rounds. Allocates two buffers for the copy and frees them.
ProbeResult probe(ThreadTeam& team, const spec::DeviceSpec& spec);

// The rate of the multiply-adds of one precision alone: the best of a few rounds, some 40 ms in
// all. Allocates no buffers.
double peak_flops_per_second(ThreadTeam& team, const spec::DeviceSpec& spec,
                             spec::Precision precision);

// One thread's loop of `rounds` rounds; returns the FLOPs of its multiply-adds, or operations.
// There is one source file for each instruction set.
double fp32_loop_portable(long rounds);
double fp32_loop_avx2(long rounds);
double fp32_loop_avx512(long rounds);
double bf16_loop_avx512(long rounds);
double bf16_loop_amx(long rounds);
double int8_loop_avx512(long rounds);
double int8_loop_avx_vnni(long rounds);

}  // namespace anabatic::device
