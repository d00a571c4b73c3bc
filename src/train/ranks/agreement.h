// SPDX-License-Identifier: Apache-2.0
// What the ranks of a run agree on before the first step. The first one decides; the others take it
// over, or say what does not fit.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lower/compile.h"
#include "train/ranks/measured_exchanges.h"
#include "train/ranks/step_sums.h"
#include "train/run_config.h"

namespace anabatic::train {

struct Agreement {
  std::string run;                         // as YAML, the same for all ranks
  spec::Decisions decisions;               // of the planner
  std::string exchanges;                   // of the program, one a line: exchanges_of()
  std::vector<MeasuredExchange> measured;  // that their methods go by
  std::string owner;                       // of train.output, which all ranks see: owner_of()
  std::string checkpoint;                  // that states are loaded from; empty: from model.path
  std::int64_t first_step = 1;
};

// What the first rank has decided, for a run from its first step on.
Agreement agreement_of(const RunConfig& run, const lower::Compiled& training);

// The exchanges of a step in their order, one a line. Ranks whose lists are equal wait for nothing
// that another one does not send.
std::string exchanges_of(const lower::Compiled& training);
std::uint64_t hash_of(const lower::Compiled& training);  // of that list

// The first rank's, for all. Before this call ranks have exchanged nothing.
void tell(StepSums& sums, const Agreement& agreement);
Agreement hear(StepSums& sums);

// InvalidArgument with the first line that differs: the first rank's, and this one's. ResourceError
// where train.output is another directory here.
void require_same(const Agreement& agreement, const RunConfig& run, std::int32_t rank);
void require_same(const Agreement& agreement, const lower::Compiled& training, std::int32_t rank);

}  // namespace anabatic::train
