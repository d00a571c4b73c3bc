// SPDX-License-Identifier: Apache-2.0
#include "runtime/swap/swap_probe.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/rounding.h"
#include "device/clock.h"
#include "device/memory.h"

namespace anabatic::runtime::swap {
namespace {

constexpr std::size_t kPasses = 5;
constexpr double kEnoughSeconds = 0.5;  // no pass begins after it

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

SwapProbe probe_swap(const SwapOptions& options, std::int64_t bytes) {
  SwapFile file(options);
  const std::int64_t num_blocks = ceil_div(bytes, kBlockBytes);
  const device::Memory buffer(num_blocks * kBlockBytes);
  std::memset(buffer.data(), 0x5A, static_cast<std::size_t>(buffer.bytes()));
  const std::size_t region = file.add("probe", buffer.bytes());
  double total = 0;
  const auto seconds = [&](bool is_write) {
    const std::int64_t begin = device::wall_nanoseconds();
    file.transfer(is_write, region, 0, num_blocks, buffer.data());
    const double result = 1e-9 * static_cast<double>(device::wall_nanoseconds() - begin);
    total += result;
    return result;
  };
  seconds(true);  // what a file system does for blocks that were never written
  std::vector<double> writes, reads;
  do {
    writes.push_back(seconds(true));
    reads.push_back(seconds(false));
  } while (writes.size() < kPasses && total < kEnoughSeconds);
  const auto size = static_cast<double>(buffer.bytes());
  return {.description = file.describe(),
          .read_bytes_per_second = size / median(reads),
          .written_bytes_per_second = size / median(writes)};
}

}  // namespace anabatic::runtime::swap
