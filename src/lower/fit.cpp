// SPDX-License-Identifier: Apache-2.0
#include "lower/fit.h"

#include <algorithm>

namespace anabatic::lower {

bool fit(std::int64_t bytes, int most_tries,
         const std::function<std::optional<std::int64_t>(std::int64_t)>& ask) {
  std::int64_t less = 0;
  for (int tries = 0; tries < most_tries; ++tries) {
    const std::optional<std::int64_t> excess = ask(bytes);
    if (!excess) return false;
    if (*excess <= 0) return true;
    less = std::max(less, *excess << tries);
    if (bytes <= less) return false;
    bytes -= less;
  }
  return false;
}

}  // namespace anabatic::lower
