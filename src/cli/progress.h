// SPDX-License-Identifier: Apache-2.0
// The progress of a run: which steps get a line, and how long the rest will take.
#pragma once
#include <cstdint>
#include <string>

namespace anabatic::cli {

// Whether `step` of a run from `first` to `last` gets a plain line. The first and the last step
// always do, and every `log_every`-th. 0 prints some 30 lines for a run of any length. A short run
// gets all of them; a longer one the 1st, 2nd, 5th, 10th, 20th, ... step, then even spaces of at
// most a tenth to a fifteenth of the run.
bool is_shown(std::int64_t step, std::int64_t first, std::int64_t last, std::int64_t log_every);

// "0:07", "12:34", "1:02:03".
std::string format_duration(double seconds);

// "[#####...............] 120/480  0:41 elapsed, 2:03 left". The rest is estimated from the `done`
// steps so far, which took `elapsed` seconds.
std::string progress_bar(std::int64_t step, std::int64_t last, std::int64_t done, double elapsed);

}  // namespace anabatic::cli
