// SPDX-License-Identifier: Apache-2.0
// training_state.json of a checkpoint: which run it belongs to, its step, what it was trained from,
// and where its tensors are.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/json.h"
#include "train/checkpoint/boxes.h"

namespace anabatic::train {

// A run from its first start, through all its resumes.
struct RunIdentity {
  std::string id;                         // random
  std::int64_t started_milliseconds = 0;  // since 1970, at the first start
  bool operator==(const RunIdentity&) const = default;
};
RunIdentity new_run_identity();

struct CheckpointProgress {
  std::int64_t step = 0;  // done; data and randomness are pure functions of (seed, step)
  std::int64_t seed = 0;
  RunIdentity run;
  Json contents;   // train/run_contents
  BoxMap boxes{};  // of several ranks; empty: kStatesFile has all tensors whole
  // What methods of exchanges went by (train/ranks); null: all add in order.
  Json measured{};
  // train.gradient_accumulation_steps as the config had it, where the run took another number
  // (train/checkpoint/kept_batch.h).
  std::optional<std::int64_t> asked_accumulation{};
  Json loss_scale{};  // train/loss_scale; null: no step was scaled
  Json adaptive{};    // train/adaptive; null: precision stays as it is
};

void write_progress(const std::filesystem::path& checkpoint, const CheckpointProgress& progress);
// InvalidArgument if it is missing, broken, of another format, of another step than in the
// directory's name, or if its boxes have not each row once.
CheckpointProgress read_progress(const std::filesystem::path& checkpoint);

inline constexpr const char* kProgressFile = "training_state.json";
inline constexpr const char* kStatesFile = "training_state.safetensors";
inline constexpr const char* kRunConfigFile = "run_config.yaml";

}  // namespace anabatic::train
