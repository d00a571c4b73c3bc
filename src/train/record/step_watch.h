// SPDX-License-Identifier: Apache-2.0
// One step looked at from inside: seconds of its calls by segment, resident bytes while they run.
// Bits do not change: the executor reads a clock around each call.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train/model_session.h"

namespace anabatic::train {

class StepWatch {
 public:
  // At most so many looks at the resident bytes: each reads a file of /proc, some 30 µs.
  static constexpr std::size_t kMostLooks = 120;

  explicit StepWatch(const BoundProgram& program);

  // Notes all calls that the program's executor runs until end(). Allocates nothing but for the
  // looks at memory.
  void begin(bool with_memory);
  void end();

  const std::vector<std::string>& segments() const { return segments_; }
  std::int64_t nanoseconds(std::size_t segment) const { return nanoseconds_[segment]; }
  std::int64_t wall_nanoseconds() const { return wall_; }  // from begin() to end()

  // Resident bytes after some calls of the last micro-batch and the update, by their positions in
  // forward ++ backward ++ update; empty without memory.
  struct Look {
    std::int64_t position = 0, bytes = 0;
  };
  std::vector<Look> looks() const;
  std::int64_t num_positions() const { return num_positions_; }

 private:
  static void on_call(void* context, const runtime::CallEvent& event);

  const BoundProgram* program_;
  std::vector<std::string> segments_;
  std::vector<std::int32_t> segment_of_call_, position_of_call_;  // position -1: none of the plan
  std::vector<std::int64_t> nanoseconds_;                         // by segment
  std::vector<std::int64_t> resident_;  // every stride_ positions; 0: not looked at
  std::int64_t num_positions_ = 0, stride_ = 1, begin_ = 0, wall_ = 0;
  bool with_memory_ = false;
};

}  // namespace anabatic::train
