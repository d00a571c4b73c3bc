// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel.h"

namespace anabatic::kernels {

std::vector<const Kernel*> candidates(std::string_view op) {
  std::vector<const Kernel*> rows;
  for (const std::span<const Kernel> table : {cpu_table(), ref_table()})
    for (const Kernel& kernel : table)
      if (kernel.op == op) rows.push_back(&kernel);
  return rows;
}

const Kernel* find_kernel(std::string_view name) {
  for (const std::span<const Kernel> table : {cpu_table(), ref_table()})
    for (const Kernel& kernel : table)
      if (kernel.name == name) return &kernel;
  return nullptr;
}

}  // namespace anabatic::kernels
