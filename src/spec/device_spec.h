// SPDX-License-Identifier: Apache-2.0
// What a device is, as plain data: a laptop can plan for other machines and test such plans.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace anabatic::spec {

struct DeviceSpec {
  std::string kind = "cpu";
  std::string model;             // as the machine reports it
  std::int32_t num_threads = 1;  // compute threads this process may use
  std::vector<std::string>
      instruction_sets;  // "avx2", "avx512f", "avx512_bf16", ... as detected and allowed
  std::int64_t l1_bytes = 32 << 10;  // data cache of one core
  std::int64_t l2_bytes = 1 << 20;   // of one core
  std::int64_t l3_bytes = 16 << 20;  // shared
  double fp32_flops_per_second = 0;  // all threads; 0 when not measured
  double bf16_flops_per_second = 0;
  double int8_ops_per_second = 0;    // multiply-adds of int8 values, each two operations
  double copy_bytes_per_second = 0;  // of memory, read + written bytes, all threads

  bool has(const std::string& instruction_set) const {
    for (const std::string& name : instruction_sets)
      if (name == instruction_set) return true;
    return false;
  }
};

}  // namespace anabatic::spec
