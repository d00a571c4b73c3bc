// SPDX-License-Identifier: Apache-2.0
// What deciders chose for one program: a plain value that passes read and that prints.
#pragma once
#include <set>
#include <string>

namespace anabatic::spec {

struct Decisions {
  // Keys (analysis/rebuild.h) of forward values that the backward makes again instead of reading.
  std::set<std::string, std::less<>> recompute{};
  // A second packing of every weight stands between steps, rather than being made in the backward.
  bool pack_transposed = true;

  bool operator==(const Decisions&) const = default;
};

}  // namespace anabatic::spec
