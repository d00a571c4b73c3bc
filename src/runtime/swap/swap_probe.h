// SPDX-License-Identifier: Apache-2.0
// Probes a directory's disk for the swap engine: which device it can use, and how fast it is.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/swap/swap_file.h"

namespace anabatic::runtime::swap {

struct SwapProbe {
  std::string description;  // of the device, and why others were refused
  double read_bytes_per_second = 0, written_bytes_per_second = 0;
};

// Writes and reads a scratch file of `bytes` a few times, as the engine does. The speeds are
// medians without the first write; a slow disk gets fewer passes. ResourceError as SwapFile.
SwapProbe probe_swap(const SwapOptions& options, std::int64_t bytes);

}  // namespace anabatic::runtime::swap
