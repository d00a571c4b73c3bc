// SPDX-License-Identifier: Apache-2.0
// A step's micro-batches from sequences of the caller, like those of io::Dataset from files.
#pragma once
#include <cstdint>
#include <span>

#include "anabatic/sequence.h"
#include "io/data/loader.h"
#include "train/model_session.h"

namespace anabatic::train {

struct StepShape {
  std::int64_t sequence_length = 0, micro_batch_size = 0;
  std::int64_t vocabulary = 0;
  std::int32_t pad_id = 0;
};

StepShape step_shape(const RunConfig& run, const ModelSession& model);

// Micro-batches of `micro_batch_size` sequences each, the last one filled up with padding.
// InvalidArgument names sequence and position of invalid data.
io::StepBatch make_step(std::span<const Sequence> sequences, const StepShape& shape);

}  // namespace anabatic::train
