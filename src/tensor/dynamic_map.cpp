// SPDX-License-Identifier: Apache-2.0
#include "tensor/dynamic_map.h"

#include <limits>

namespace anabatic {
namespace {

DynamicMap make_map(bool is_signed) {
  DynamicMap map{};
  std::size_t code = 1;
  double below = 0;  // the entry before the decade
  for (int decade = 0; decade < 7; ++decade) {
    const int count = is_signed ? 1 << decade : 2 << decade;
    const double top = std::pow(10.0, decade - 6), step = 0.9 * top / count;
    const auto at = static_cast<std::size_t>(decade);
    map.origins[at + 1] = static_cast<float>(0.1 * top);
    map.rates[at + 1] = static_cast<float>(1 / step);
    map.thresholds[at] = static_cast<float>((below + 0.1 * top + 0.5 * step) / 2);
    for (int i = 0; i < count; ++i, ++code) {
      below = 0.1 * top + (i + 0.5) * step;
      map.values[code] = static_cast<float>(below);
      if (is_signed) map.values[256 - code] = -map.values[code];
    }
  }
  map.thresholds[7] = static_cast<float>((below + 1) / 2);
  map.values[code] = 1.0f;
  std::copy_n(map.thresholds.begin(), 7, map.next.begin());
  if (!is_signed) map.next[0] = 0;
  map.next[7] = std::numeric_limits<float>::infinity();
  return map;
}

}  // namespace

const DynamicMap& signed_map() {
  static const DynamicMap map = make_map(true);
  return map;
}

const DynamicMap& unsigned_map() {
  static const DynamicMap map = make_map(false);
  return map;
}

}  // namespace anabatic
