// SPDX-License-Identifier: Apache-2.0
// What the results of several calls must have in common. A difference ends the case.
#pragma once
#include <array>
#include <string_view>

#include "plugin/check/guarded_call.h"

namespace anabatic::plugin::check {

inline constexpr std::byte kPoison{0x55}, kOtherPoison{0xAA};
inline constexpr std::array<Setting, 6> kSettings{{{1, Side::kBegin, kPoison},
                                                   {1, Side::kEnd, kOtherPoison},
                                                   {2, Side::kBegin, kPoison},
                                                   {2, Side::kEnd, kOtherPoison},
                                                   {4, Side::kBegin, kPoison},
                                                   {4, Side::kEnd, kOtherPoison}}};

// Bits are equal in outputs that both have.
void expect_equal(const Operands& got, const Operands& want, std::string_view kind,
                  std::string_view when, Reporter& reporter);
// No element has the poison of both kSettings[0] and kSettings[1].
void expect_written(const Operands& first, const Operands& second, Reporter& reporter);

// Floats are near those of `want`: within a share of the largest magnitude, what terms near 1 that
// cancel leave, and eight times what `moved_results` are off. Those are the results of inputs that
// moved by a rounding `unit`.
void expect_near(const Operands& got, const Operands& want, const Operands& moved_results,
                 double unit, std::string_view with, Reporter& reporter);

// run(setting) for all settings: all elements are written, with equal bits. Returns the first.
template <class Run>
Operands repeat(const Run& run, Reporter& reporter) {
  Operands first;
  for (const Setting& setting : kSettings) {
    const Operands now = run(setting);
    if (&setting == kSettings.data()) {
      first = now;
      continue;
    }
    if (&setting == &kSettings[1]) expect_written(first, now, reporter);
    if (setting.threads == 1)
      expect_equal(now, first, "repeat", "in a second call with the same inputs", reporter);
    else
      expect_equal(now, first, "threads",
                   setting.threads == 2 ? "on 2 threads than on 1" : "on 4 threads than on 1",
                   reporter);
  }
  return first;
}

}  // namespace anabatic::plugin::check
