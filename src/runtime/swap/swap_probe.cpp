// SPDX-License-Identifier: Apache-2.0
#include "runtime/swap/swap_probe.h"

#include <cstring>

#include "device/clock.h"
#include "device/memory.h"

namespace anabatic::runtime::swap {

SwapProbe probe_swap(const SwapOptions& options, std::int64_t bytes) {
  SwapFile file(options);
  const std::int64_t num_blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  const device::Memory buffer(num_blocks * kBlockBytes);
  std::memset(buffer.data(), 0x5A, static_cast<std::size_t>(buffer.bytes()));
  const std::size_t region = file.add("probe", buffer.bytes());
  const auto rate = [&](bool is_write) {
    const std::int64_t begin = device::wall_nanoseconds();
    file.transfer(is_write, region, 0, num_blocks, buffer.data());
    return static_cast<double>(buffer.bytes()) /
           (1e-9 * static_cast<double>(device::wall_nanoseconds() - begin));
  };
  SwapProbe probe{.description = file.describe()};
  probe.written_bytes_per_second = rate(true);
  probe.read_bytes_per_second = rate(false);
  return probe;
}

}  // namespace anabatic::runtime::swap
