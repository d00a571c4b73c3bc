// SPDX-License-Identifier: Apache-2.0
// How the first rank reads what other ranks hold of a parameter, to write it whole: it asks for
// bytes, and who has them sends them. Between steps; all ranks take part.
#pragma once
#include <cstdint>

#include "runtime/peer_states.h"
#include "runtime/state_store.h"
#include "train/ranks/step_sums.h"

namespace anabatic::train {

// On the first rank, which has told the others to answer. Its store reads from peers while this
// lives; the end lets them go on.
class PeerReads : public runtime::PeerStates {
 public:
  PeerReads(StepSums& sums, runtime::StateStore& store);
  ~PeerReads() override;
  PeerReads(const PeerReads&) = delete;
  PeerReads& operator=(const PeerReads&) = delete;

  void read_bytes(Name state, std::int64_t first_byte, std::span<std::byte> bytes) override;

 private:
  StepSums& sums_;
  runtime::StateStore& store_;
};

// On the other ranks: answers until the first one has read all that it wants.
void answer_reads(StepSums& sums, const runtime::StateStore& store);

}  // namespace anabatic::train
