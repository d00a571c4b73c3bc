// SPDX-License-Identifier: Apache-2.0
// Describes this machine.
#pragma once
#include "spec/device_spec.h"

namespace anabatic::device {

class ThreadTeam;

// Instruction sets come from cpuid, limited by ANABATIC_MAX_ISA; caches from hwloc. `measure`: also
// the peaks of fp32, bf16 and int8 multiply-adds on all threads of the team and the bandwidth of a
// copy larger than any cache, about 0.2 s. A process measures once for each number of threads. Peak
// = the register-resident multiply-add loop of that precision; bf16 without VDPBF16PS and int8
// without VPDPBUSD count at the fp32 rate.
spec::DeviceSpec probe_cpu(ThreadTeam& team, bool measure);

// The same for plans that need no thread team: `num_threads` 0 is the number that cpu_limits()
// allows.
spec::DeviceSpec describe_cpu(int num_threads);

// Whether this CPU has VPDPBUSD on 256 bits, encoded without AVX-512.
bool has_avx_vnni();

}  // namespace anabatic::device
