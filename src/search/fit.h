// SPDX-License-Identifier: Apache-2.0
// Plans for fewer and fewer bytes until a plan fits: its real size is known only after planning.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

namespace anabatic::search {

struct Answer {
  std::int64_t excess = 0;  // by which the plan is too large; 0 or less: it fits
  std::int64_t taken = std::numeric_limits<std::int64_t>::max();  // if less than was asked for
};

// `ask` plans for so many bytes; no answer: fewer bytes would not help. Each further try asks for
// fewer bytes: fewer by the last excess, then by twice that, and so on. That is counted from what
// the last plan took, or, if it took all that was asked for, the decrease is no smaller than
// before. Returns whether one of `most_tries` fits.
bool fit(std::int64_t bytes, int most_tries,
         const std::function<std::optional<Answer>(std::int64_t)>& ask);

}  // namespace anabatic::search
