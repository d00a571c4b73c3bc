// SPDX-License-Identifier: Apache-2.0
#include "search/fit.h"

#include <algorithm>

namespace anabatic::search {

bool fit(std::int64_t bytes, int most_tries,
         const std::function<std::optional<Answer>(std::int64_t)>& ask) {
  std::int64_t less = 0;
  for (int tries = 0; tries < most_tries; ++tries) {
    const std::optional<Answer> answer = ask(bytes);
    if (!answer) return false;
    if (answer->excess <= 0) return true;
    less = std::max(answer->taken < bytes ? 0 : less, answer->excess << tries);
    bytes = std::min(bytes, answer->taken) - less;
    if (bytes <= 0) return false;
  }
  return false;
}

}  // namespace anabatic::search
