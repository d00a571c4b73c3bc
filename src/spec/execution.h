// SPDX-License-Identifier: Apache-2.0
// The words about running a step that plan and runtime share: actions, arenas, how an output is
// written.
#pragma once
#include <cstdint>
#include <string_view>

namespace anabatic::spec {

// kForward and kBackward run once a micro-batch, kUpdate once a step.
enum class Action : std::uint8_t { kForward, kBackward, kUpdate };
std::string_view to_string(Action action);

// Persistent: states, by index into Program::states. Frame: one micro-batch. Gradient: first write
// to update. Input: batch and step inputs.
enum class Arena : std::uint8_t { kPersistent, kFrame, kGradient, kInput };

// How an output is written. kFirstAssigns: `=` in the first micro-batch of a step, `+=` in later
// ones.
enum class WriteMode : std::uint8_t { kAssign, kAccumulate, kFirstAssigns };

}  // namespace anabatic::spec
