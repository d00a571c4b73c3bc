// SPDX-License-Identifier: Apache-2.0
// windows.jsonl: what a run keeps of its steps for its report, a line every so many steps, so that
// a run of any length leaves a file of bounded size.
#pragma once
#include <cstdint>
#include <filesystem>

#include "io/json_lines.h"
#include "train/expert_balance.h"
#include "train/record/step_watch.h"

namespace anabatic::train {

inline constexpr const char* kWindowsFile = "windows.jsonl";

// Steps first..last of one process, cut into at most kMostWindows; a window ends early at a
// checkpoint, so that a resume finds whole ones.
class WindowsLog {
 public:
  static constexpr std::int64_t kMostWindows = 200;

  // Appends to OUTPUT/windows.jsonl, dropping windows that end at `first_step` or later. `program`
  // must outlive what is watched of it.
  WindowsLog(const std::filesystem::path& output, std::int64_t first_step, std::int64_t last_step,
             const BoundProgram& program, const ExpertCounts& like);

  // Looks at the step while it lives, where it is the one of its window that is looked at: the
  // second, for the first may follow a checkpoint or a validation.
  class Watching {
   public:
    Watching(StepWatch* watch, bool with_memory);
    ~Watching();
    Watching(const Watching&) = delete;
    Watching& operator=(const Watching&) = delete;

   private:
    StepWatch* watch_;  // null: not looked at
  };
  [[nodiscard]] Watching watch(std::int64_t step);

  // After each step, with what it counted. A window keeps the counts of int8 products of its last
  // step.
  void add(std::int64_t step, const ExpertCounts& counts, const std::vector<Int8Counts>& int8 = {});
  // Ends the window under way and makes the file durable.
  void sync();

  // Estimated bytes of a run's windows. `num_int8_units`: weights whose int8 products count.
  static std::int64_t estimate_bytes(std::int64_t num_steps, std::int64_t num_experts_of_layers,
                                     std::int64_t num_int8_units);

 private:
  void write(std::int64_t step);

  io::JsonLinesWriter lines_;
  StepWatch watch_;
  ExpertCounts sums_;
  std::vector<Int8Counts> int8_;
  std::int64_t first_step_, last_step_, length_;  // of the process; steps of a window
  std::int64_t begin_;                            // the window's first step
  std::int64_t end_;                              // its last step so far
  std::int64_t watched_step_ = 0;                 // of this window; 0: none yet
};

}  // namespace anabatic::train
