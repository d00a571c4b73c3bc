// SPDX-License-Identifier: Apache-2.0
// The int8 value of a block's largest element. A build with -DANABATIC_LARGEST_INT8=7 has int8
// values of 4 bits: the control of bench/precision.py, and nothing to train with.
#pragma once

#ifndef ANABATIC_LARGEST_INT8
#define ANABATIC_LARGEST_INT8 127
#endif

namespace anabatic {
inline constexpr float kLargestInt8 = ANABATIC_LARGEST_INT8;
inline constexpr float kLargestUInt8 = 2 * kLargestInt8 + 1;  // of exponentials, which have no sign
}  // namespace anabatic
