// SPDX-License-Identifier: Apache-2.0
// What deciders chose for one program: a plain value that passes read and that prints.
#pragma once
#include <set>
#include <string>

namespace anabatic::spec {

struct Decisions {
  // Keys (analysis/rebuild.h) of forward values that the backward makes again instead of reading.
  std::set<std::string, std::less<>> recompute{};
  bool state_on_disk = false;  // the optimizer's moments, between updates
};

}  // namespace anabatic::spec
