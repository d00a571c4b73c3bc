// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/rounding.h"

namespace anabatic::cli {
namespace {

constexpr std::int64_t kShortRun = 20;  // steps that all have their line
constexpr std::int64_t kSpaces = 15;    // of a long run, at most

// The smallest of 1, 2, 5, 10, 20, ... that is at least `least`.
std::int64_t round_step(std::int64_t least) {
  for (std::int64_t power = 1;; power *= 10)
    for (const std::int64_t digit : {1, 2, 5})
      if (digit * power >= least) return digit * power;
}

}  // namespace

bool is_shown(std::int64_t step, std::int64_t first, std::int64_t last, std::int64_t log_every) {
  if (step == first || step == last) return true;
  if (log_every > 0) return step % log_every == 0;
  const std::int64_t length = last - first + 1, place = step - first + 1;
  if (length <= kShortRun) return true;
  const std::int64_t space = round_step(ceil_div(length, kSpaces));
  return step % space == 0 || (place < space && round_step(place) == place);
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  const std::int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string progress_bar(std::int64_t step, std::int64_t last, std::int64_t done, double elapsed) {
  constexpr std::int64_t kWidth = 20;
  const std::int64_t filled = last > 0 ? kWidth * step / last : kWidth;
  const double left =
      done > 0 ? elapsed / static_cast<double>(done) * static_cast<double>(last - step) : 0;
  return fmt::format("[{}{}] {}/{}  {} elapsed, {} left",
                     std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(kWidth - filled), '.'), step, last,
                     format_duration(elapsed), format_duration(left));
}

}  // namespace anabatic::cli
