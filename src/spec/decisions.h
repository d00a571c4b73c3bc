// SPDX-License-Identifier: Apache-2.0
// What deciders chose for one program: a plain value that passes read and that prints.
#pragma once
#include <cstdint>
#include <set>
#include <string>

namespace anabatic::spec {

struct Decisions {
  // Keys (analysis/rebuild.h) of forward values that the backward makes again instead of reading.
  std::set<std::string, std::less<>> recompute{};
  // A second packing of every weight stands between steps, rather than being made in the backward.
  bool pack_transposed = true;
  bool state_on_disk = false;    // the optimizer's moments, between updates
  std::int32_t num_windows = 0;  // of their slices, then; see plan/swap.h

  bool operator==(const Decisions&) const = default;
};

}  // namespace anabatic::spec
