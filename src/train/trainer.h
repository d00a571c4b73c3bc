// SPDX-License-Identifier: Apache-2.0
// One training run: data → steps → metrics, validation and checkpoints.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "train/evaluate.h"
#include "train/model_session.h"
#include "train/run_config.h"

namespace anabatic::train {

struct TrainResult {
  std::int64_t step = 0;     // the last one done
  bool interrupted = false;  // by SIGINT or SIGTERM; the checkpoint is written
  double loss = 0;           // of the last step
  std::optional<Evaluation> before,
      after;  // validation at the start of a fresh run, and at the end
  std::filesystem::path checkpoint;
  std::int64_t planned_memory_bytes = 0;
  std::int64_t peak_memory_bytes = 0;  // 0: the system does not say
};

class Trainer {
 public:
  // Reads, plans and allocates everything; resumes when run.train.resume is auto and OUTPUT/latest
  // is there. InvalidArgument for what is missing in the run config (model.path, data.train,
  // train.output). `wrap_swap` as in ModelSession.
  explicit Trainer(const RunConfig& run, runtime::swap::DeviceWrapper wrap_swap = {});
  ~Trainer();

  // Runs up to run.train.steps. Stops with Error naming step and tensor when the loss or a gradient
  // is not finite, and with ResourceError when a disk failed; what is on disk then is the last
  // checkpoint.
  TrainResult train();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic::train
