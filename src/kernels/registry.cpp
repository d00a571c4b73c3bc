// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "kernels/kernel.h"

namespace anabatic::kernels {

std::span<const DeviceTable> device_tables() {
  static constexpr std::array<DeviceTable, 3> kTables{
      {{"cpu", cpu_table}, {"cpu", cpu_widened_table}, {"ref", ref_table}}};
  return kTables;
}

std::vector<const Kernel*> candidates(std::string_view op) {
  std::vector<const Kernel*> rows;
  for (const DeviceTable& table : device_tables())
    for (const Kernel& kernel : table.rows())
      if (kernel.op == op) rows.push_back(&kernel);
  return rows;
}

const Kernel* find_kernel(std::string_view name) {
  for (const DeviceTable& table : device_tables())
    for (const Kernel& kernel : table.rows())
      if (kernel.name == name) return &kernel;
  return nullptr;
}

}  // namespace anabatic::kernels
