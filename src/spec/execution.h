// SPDX-License-Identifier: Apache-2.0
// The words that plan and runtime share about running a step: actions and arenas.
#pragma once
#include <cstdint>
#include <string_view>

namespace anabatic::spec {

// kForward and kBackward run once a micro-batch, kUpdate once a step, kSumLeaf after each leaf of a
// step but the last one (spec/step.h).
enum class Action : std::uint8_t { kForward, kBackward, kUpdate, kSumLeaf };
std::string_view to_string(Action action);

// Persistent: states, by index into Program::states. Frame: one micro-batch. Gradient: first write
// to update. Input: batch and step inputs. External: inputs and outputs in memory of the caller,
// who gives an address for each at every run.
enum class Arena : std::uint8_t { kPersistent, kFrame, kGradient, kInput, kExternal };

inline constexpr std::int64_t kAlignmentBytes = 64;  // of every offset in an arena

}  // namespace anabatic::spec
