// SPDX-License-Identifier: Apache-2.0
// How far a run has come: which steps get a line, and how long the rest will take.
#pragma once
#include <cstdint>
#include <string>

namespace anabatic::cli {

// Does `step` of a run from `first` to `last` get a plain line? Every `log_every` steps, and the
// first and the last always. With 0 lines thin out, to some 30 for a run of any length: all of a
// short run; else the 1st, 2nd, 5th, 10th, 20th, ... step, then even spaces of a tenth to a
// fifteenth of the run or less.
bool is_shown(std::int64_t step, std::int64_t first, std::int64_t last, std::int64_t log_every);

// "0:07", "12:34", "1:02:03".
std::string format_duration(double seconds);

// "[#####...............] 120/480  0:41 elapsed, 2:03 left": the rest at the pace of the steps so
// far, of which `done` took `elapsed` seconds.
std::string progress_bar(std::int64_t step, std::int64_t last, std::int64_t done, double elapsed);

}  // namespace anabatic::cli
