// SPDX-License-Identifier: Apache-2.0
// Planning for fewer bytes until a plan fits: what it takes shows only once it is made.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

namespace anabatic::lower {

// `ask` plans for so many bytes and returns by how many the plan is too large: 0 or less, it fits;
// none, asking for less would not help. The next is asked for less by what the last was too large,
// then by twice that, and so on, and never by less than before. Whether one fits, of `most_tries`.
bool fit(std::int64_t bytes, int most_tries,
         const std::function<std::optional<std::int64_t>(std::int64_t)>& ask);

}  // namespace anabatic::lower
