// SPDX-License-Identifier: Apache-2.0
// A model in memory that the host trains step by step, with its own data and schedule.
//
//   anabatic::Config config;
//   config.model = {.path = "config.json", .init = anabatic::Config::Model::Init::kRandom};
//   config.train.micro_batch_size = 4;
//   anabatic::Session session(config);
//   while (...) {
//     const anabatic::StepResult result = session.step(my_sequences(), my_learning_rate());
//     std::printf("%f\n", result.loss);
//   }
//   session.save("run");
//
// The model, the step's size, precision, optimizer and memory come from the config. Of data.* only
// the length of sequences is read. anabatic/engine.h trains on data.train.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "anabatic/engine.h"
#include "anabatic/sequence.h"
#include "anabatic/state.h"

namespace anabatic {

struct StepResult {
  std::int64_t step = 0;             // 1 for the first
  double loss = 0;                   // mean over the unmasked labels, before the update
  double aux_loss = 0;               // train.balance_loss without its weight; 0 without MoE layers
  std::optional<double> z_loss{};    // without its weight, if it is part of the objective
  std::optional<double> mtp_loss{};  // likewise, of multi-token prediction
  double gradient_norm = 0;          // global norm of the gradients, before clipping
  std::optional<double> loss_scale{};  // what the loss was multiplied by; empty where nothing
  bool is_skipped = false;             // a gradient was not finite, and nothing was updated
  std::int64_t num_labels = 0;
  std::vector<LayerBalance> experts{};  // one for each MoE layer
  // As in StepMetrics.
  std::vector<SparsityMetrics> sparsity{};
  std::vector<Int8Counts> int8{};
  std::optional<double> int8_zeroed{}, int8_fallback{};
};

struct GradientNorm {
  std::string parameter;
  double norm = 0;  // L2, before clipping
};

// Prints nothing and installs no signal handler. Sessions are independent of each other and of
// engines. Each is used by one thread at a time.
class ANABATIC_API Session {
 public:
  // Plans the step within memory.budget, allocates memory and initialises the parameters as
  // model.init says. Where train.output is given, anabatic.manifest.json in it names every tensor
  // that was read from files. InvalidArgument lists every problem. BudgetError (anabatic/plan.h) if
  // no plan fits. `listener` gets messages and the plan, and must outlive the session.
  explicit Session(const Config& config, RunListener* listener = nullptr);
  // From text. `settings` override the YAML file, if there is one.
  explicit Session(const Settings& settings, const std::string& yaml_file = "",
                   RunListener* listener = nullptr);
  ~Session();
  Session(Session&&) noexcept;

  const PlanSummary& plan() const;
  std::int64_t sequence_length() const;
  std::int64_t sequences_per_step() const;  // micro_batch_size * gradient_accumulation_steps
  std::int64_t vocabulary() const;          // token ids are smaller
  std::int64_t num_steps() const;  // done so far, including those before a restored checkpoint
  double scheduled_learning_rate() const;  // of the next step, by optimizer.* and train.steps
  std::string graph() const;               // of the training step, as text

  // One training step on at most sequences_per_step() sequences. InvalidArgument if there is no
  // unmasked label or a token is invalid; nothing has changed then. Error if a loss or gradient is
  // not finite; the parameters are those before the step.
  StepResult step(std::span<const Sequence> batch, double learning_rate);
  // Gradient norms of the last step, one for each parameter, in the order of the model. Empty
  // before the first step.
  std::vector<GradientNorm> gradient_norms() const;
  // The loss on any number of sequences. Changes nothing.
  EvaluationSummary evaluate(std::span<const Sequence> sequences);
  std::string generate(const std::string& prompt);  // the continuation; uses the keys generate.*

  // Parameters and optimizer state, in the order of their names.
  const std::vector<StateInfo>& states() const;
  // Elements [first, first + values.size()) of a state, row-major, as f32. Unsupported for 8-bit
  // moments.
  void read(const std::string& state, std::int64_t first, std::span<float> values) const;
  void write(const std::string& state, std::int64_t first, std::span<const float> values);
  // The state's own memory, which steps change: until the session ends. Empty unless it is stored
  // as row-major f32 numbers, in one piece: most matrices are not.
  std::span<const float> view(const std::string& state) const;

  // Writes DIRECTORY/step-N and returns its path. Hugging Face loads it, and restore() resumes from
  // it with equal bits. It is durable on return; a failure leaves no step-N.
  std::string save(const std::string& directory);
  // Loads parameters, optimizer state and the number of steps from such a checkpoint, and verifies
  // its checksums. InvalidArgument if it is of another model.
  void restore(const std::string& checkpoint);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic
