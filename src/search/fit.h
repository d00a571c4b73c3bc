// SPDX-License-Identifier: Apache-2.0
// Planning for fewer bytes until a plan fits: what it takes shows only once it is made.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

namespace anabatic::search {

struct Answer {
  std::int64_t excess = 0;  // by which the plan is too large; 0 or less: it fits
  std::int64_t taken = std::numeric_limits<std::int64_t>::max();  // where less than was asked for
};

// `ask` plans for so many bytes; no answer: asking for less would not help. The next is asked for
// less by what the last was too large, then by twice that, and so on: less than the last took, or
// where that was all that was asked for, by no less than before. Whether one of `most_tries` fits.
bool fit(std::int64_t bytes, int most_tries,
         const std::function<std::optional<Answer>(std::int64_t)>& ask);

}  // namespace anabatic::search
