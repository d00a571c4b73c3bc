// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/call.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace anabatic::kernels::cpu {

void require_index(const char* what, std::int64_t index, std::int64_t size) {
  ANABATIC_REQUIRE(0 <= index && index < size, "[{}] expected an index in [0, {}), got {}", what,
                   size, index);
}

void require_label(std::int64_t label, std::int64_t num_classes) {
  ANABATIC_REQUIRE(label == kIgnoredLabel || (0 <= label && label < num_classes),
                   "[cross_entropy] expected labels in [0, {}) or {}, got {}", num_classes,
                   kIgnoredLabel, label);
}

void sort_by_index(const std::int32_t* indices, std::int64_t begin, std::int64_t end,
                   std::int32_t* order) {
  std::iota(order + begin, order + end, static_cast<std::int32_t>(begin));
  std::sort(order + begin, order + end, [=](std::int32_t a, std::int32_t b) {
    return indices[a] != indices[b] ? indices[a] < indices[b] : a < b;
  });
}

}  // namespace anabatic::kernels::cpu
