// SPDX-License-Identifier: Apache-2.0
// What layers of multi-token prediction read of a micro-batch (model/mtp.h).
#pragma once
#include <cstdint>

#include "io/data/loader.h"
#include "train/model_session.h"

namespace anabatic::train {

// What the labels of depth 1, 2, ... weigh: at each depth they are one token further on, and none
// is beyond its row's document. Without weights it is their number.
double mtp_label_weight(const io::MicroBatch& batch, std::int64_t depth);

// Fills the inputs of every depth that the program has.
void set_mtp_rows(BoundProgram& program, const io::MicroBatch& batch);

// What the losses of a step are means of: 1 / the weight of each depth's labels; 0 for none.
void set_mtp_scales(BoundProgram& program, std::span<const io::MicroBatch> step);

}  // namespace anabatic::train
