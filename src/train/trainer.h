// SPDX-License-Identifier: Apache-2.0
// One training run: data → steps → metrics, validation and checkpoints.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "anabatic/events.h"
#include "comm/mpi_world.h"
#include "train/evaluate.h"
#include "train/model_session.h"
#include "train/run_config.h"

namespace anabatic::train {

struct TrainResult {
  std::int64_t step = 0;     // the last step that was done
  bool interrupted = false;  // by the listener; the checkpoint is written
  double loss = 0;           // of the last step
  std::optional<Evaluation> before,
      after;  // validation at the start of a fresh run, and at the end
  std::filesystem::path checkpoint;
  std::int64_t planned_memory_bytes = 0;
  std::int64_t peak_memory_bytes = 0;  // 0 if the system does not report it
  bool counts_process = true;          // planned_memory_bytes, as in PlanSummary
  double planned_step_seconds = 0;
  double step_seconds = 0;              // median; 0: no step was done
  std::vector<LayerBalance> experts{};  // one for each MoE layer, over the last steps
  std::int64_t expert_steps = 0;        // the number of those steps; 0: no step was done
  std::string disk;  // what states on disk moved and how fast; empty: there are none
};

class Trainer {
 public:
  // Reads, plans and allocates everything. Resumes if run.train.resume is auto and OUTPUT has a
  // checkpoint. InvalidArgument for missing keys (model.path, data.train, train.output).
  // `wrap_swap` as in ModelSession.
  explicit Trainer(const RunConfig& run, runtime::swap::DeviceWrapper wrap_swap = {});
  // Reports to `listener`, which must outlive it, and asks it between steps whether to stop. As the
  // first of the processes of a launcher with `world`, whose others call follow().
  Trainer(const RunConfig& run, RunListener& listener, runtime::swap::DeviceWrapper wrap_swap = {},
          comm::MpiWorld* world = nullptr);
  ~Trainer();

  // Runs up to run.train.steps. Throws Error naming step and tensor if the loss or a gradient is
  // not finite, and ResourceError if a disk failed. The last checkpoint is on disk then, and the
  // run is over.
  TrainResult train();
  // Its next step, with the validation and the checkpoint that are due after it. Empty: the run is
  // over, and saved. `of_host`, of one rank, replaces the samples of the step.
  std::optional<StepMetrics> step(const io::StepBatch* of_host = nullptr);
  bool is_over() const;
  TrainResult result() const;  // so far

  // Between steps of a run that is not over.
  Evaluation evaluate();         // data.validation; Unsupported if there is none
  std::filesystem::path save();  // returns the checkpoint of the last step

  const PlanSummary& plan() const;
  const lower::Compiled& compiled() const;  // the step
  ModelSession& session();                  // this rank's

  // The trained model, without the training program. Afterwards the trainer may only be destroyed.
  std::unique_ptr<ModelSession> take_session();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic::train
