// SPDX-License-Identifier: Apache-2.0
// What the ranks of a run tell each other around a step, besides the exchanges of its program: who
// goes on, how many tokens the step has on all ranks, and sums of what each has counted. All ranks
// call the same functions in the same order.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/data/loader.h"
#include "runtime/exchange_driver.h"
#include "train/training_step.h"

namespace anabatic::train {

// What the first rank does next.
enum class Verdict : std::uint8_t {
  kEnds,
  kSteps,
  kSaves,  // train/ranks/shared_save.h
  kValidates,
  kTellsAll  // train/ranks/agreement.h
};

class StepSums {
 public:
  // Alone, every sum is the number itself. The communicator must outlive it. Of the values that one
  // sum() takes, there are at most `most_values`.
  StepSums(const runtime::RankContext& rank, std::size_t most_values);

  // Begins a step for the exchanges of all ranks; `plan` is the hash of what they run. Returns what
  // the first rank does. Where another rank says kEnds, is_end_asked() from then on.
  Verdict begin(std::uint64_t plan, std::int64_t step, Verdict own);
  bool is_end_asked() const { return is_end_asked_; }

  StepTotals totals(const io::StepBatch& own);

  // Over the ranks. The same on all ranks.
  void sum(std::span<std::int64_t> values);
  // Over all leaves of the step, in their order: each rank has some, of as many values as the
  // total.
  void sum(std::span<const double> leaves, std::span<double> total);
  // Those of the rank whose first value is the largest, the first such rank's, on all ranks.
  void take_largest(std::span<double> values);
  // Adds each rank's number to the total, one after the other. The same on all ranks.
  void add_in_order(double& total, double own);

  // The first rank's bytes for all. Alone it does nothing. The others wait for it however long it
  // takes: it validates and saves between steps.
  void broadcast(std::span<std::byte> bytes);
  void broadcast(std::string& text);

  // Each rank's part of `bytes` for all: parts of so many bytes, in the order of the ranks. They
  // may take any time to come.
  void share(std::span<std::byte> bytes, std::span<const std::int64_t> parts);

  // Bytes of a rank for the first one, which waits for them. Others pass none.
  void bring(std::int32_t from, std::span<std::byte> bytes);
  // The text of a rank, at the first one; others call it too.
  std::string bring_text(std::int32_t from, std::string own);

  std::int32_t rank() const { return rank_.rank(); }
  std::int32_t num_ranks() const { return static_cast<std::int32_t>(group_.size()); }
  std::int64_t num_bytes() const;

 private:
  void gather(std::span<const std::byte> own);
  template <class T>
  T gathered(std::size_t place) const;
  void exchange(comm::Exchange exchange, comm::Patience patience);

  runtime::RankContext rank_;
  std::vector<std::int32_t> group_;   // all ranks
  std::vector<std::int64_t> counts_;  // bytes of each
  std::array<std::int32_t, 2> pair_{};
  bool is_end_asked_ = false;
  std::vector<std::byte> gathered_, workspace_storage_;
  std::span<std::byte> workspace_;
};

}  // namespace anabatic::train
