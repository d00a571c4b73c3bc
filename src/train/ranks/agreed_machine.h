// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes plan for the slowest machine among theirs, and for the fewest bytes.
// They run the same kernels.
#pragma once
#include <string>

#include "train/machine.h"
#include "train/ranks/step_sums.h"

namespace anabatic::train {

// Tells the first rank of this one's machine; it returns what the run is planned for, `own` where
// it is alone. Others get their own back. Ranks have opened model and data before. InvalidArgument
// at the first rank where instruction sets differ.
Machine agree_on_machine(StepSums& sums, Machine own);

// Text of a machine between ranks. InvalidArgument naming the member.
std::string to_text(const Machine& machine);
Machine read_machine(const std::string& text, std::int32_t rank);

}  // namespace anabatic::train
