// SPDX-License-Identifier: Apache-2.0
#include "train/machine.h"

#include <algorithm>
#include <utility>

#include "train/calibration.h"

namespace anabatic::train {
namespace {

// What one of them has not measured is as the other one has it.
void slow_down(plan::OpEfficiency& own, const plan::OpEfficiency& other) {
  for (const auto& [key, share] : other.share_of_roof) {
    const auto place = own.share_of_roof.emplace(key, share).first;
    place->second = std::min(place->second, share);
  }
  for (const auto& [key, seconds] : other.fixed_seconds) {
    const auto [place, is_new] = own.fixed_seconds.emplace(key, seconds);
    if (!is_new && place->second >= seconds) continue;
    place->second = seconds;
    own.fixed_weight_bytes.erase(key);  // which those seconds are for
    if (const auto bytes = other.fixed_weight_bytes.find(key);
        bytes != other.fixed_weight_bytes.end())
      own.fixed_weight_bytes.insert(*bytes);
  }
}

}  // namespace

Machine priced_machine(const spec::DeviceSpec& device, const BudgetLimits& limits,
                       std::int64_t ranks_on_node) {
  spec::DeviceSpec node = device;
  node.num_threads *= static_cast<int>(ranks_on_node);
  Calibration calibration = part_of(stored_calibration(node), ranks_on_node);
  const bool is_measured = calibration.copy_bytes_per_second > 0;
  if (ranks_on_node > 1 && !is_measured) calibration = stored_calibration(device);
  return {.device = with_peaks_of(device, calibration),
          .efficiency = std::move(calibration.efficiency),
          .price_source = std::move(calibration.source),
          .limits = limits};
}

Machine slower_of(Machine own, const Machine& other) {
  spec::DeviceSpec& device = own.device;
  device.fp32_flops_per_second =
      std::min(device.fp32_flops_per_second, other.device.fp32_flops_per_second);
  device.bf16_flops_per_second =
      std::min(device.bf16_flops_per_second, other.device.bf16_flops_per_second);
  device.int8_ops_per_second =
      std::min(device.int8_ops_per_second, other.device.int8_ops_per_second);
  device.copy_bytes_per_second =
      std::min(device.copy_bytes_per_second, other.device.copy_bytes_per_second);
  slow_down(own.efficiency, other.efficiency);
  BudgetLimits& limits = own.limits;
  limits.process_bytes = std::max(limits.process_bytes, other.limits.process_bytes);
  limits.data_bytes = std::max(limits.data_bytes, other.limits.data_bytes);
  limits.mpi_bytes = std::max(limits.mpi_bytes, other.limits.mpi_bytes);
  limits.available_bytes = std::min(limits.available_bytes, other.limits.available_bytes);
  return own;
}

}  // namespace anabatic::train
