// SPDX-License-Identifier: Apache-2.0
// A checkpoint: weights, config and tokenizer as Hugging Face loads them; the fp32 masters and
// moments; the step, which is the data cursor and the state of all randomness; the resolved run
// config.
#pragma once
#include <cstdint>
#include <filesystem>

#include "train/model_session.h"

namespace anabatic::train {

struct CheckpointState {
  std::int64_t step = 0;  // done; data and randomness are pure functions of (seed, step)
};

// Writes OUTPUT/step-N durably, moves OUTPUT/latest and prunes; returns the directory. Streams from
// the live states.
std::filesystem::path save_checkpoint(const std::filesystem::path& output, ModelSession& session,
                                      const CheckpointState& state);

// Fills parameters and moments. InvalidArgument listing every state that is missing, surplus or of
// another shape, and a seed, data or batch setting that differs from the run's (a resumed run must
// equal an unbroken one; steps and schedules may change).
CheckpointState load_checkpoint(const std::filesystem::path& directory, ModelSession& session);

}  // namespace anabatic::train
