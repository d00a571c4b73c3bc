// SPDX-License-Identifier: Apache-2.0
// A model in memory that its host trains step by step, with data and a schedule of its own.
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
// The model, the sizes of a step, precision, optimizer and memory come from the config. Keys of
// data files and of the schedule are not read. anabatic/engine.h trains from files with those.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "anabatic/engine.h"
#include "anabatic/state.h"

namespace anabatic {

// Tokens of one row of a batch, at most data.sequence_length. A shorter one is padded, and padding
// is neither attended to nor learned.
struct Sequence {
  std::vector<std::int32_t> tokens;
  // As in transformers: labels[i] is what the model should have said for tokens[i], which it
  // predicts from the tokens before it; -100 is not learned. Empty: the tokens.
  std::vector<std::int32_t> labels{};
  // Lengths of the documents that follow one another in `tokens`. Attention and positions stay
  // within a document, and its first token is not learned. Empty: one document.
  std::vector<std::int64_t> documents{};
};

struct StepResult {
  std::int64_t step = 0;           // 1 for the first
  double loss = 0;                 // mean over the labels that were learned, before the update
  double aux_loss = 0;             // unweighted, of train.balance_loss; 0 without MoE layers
  std::optional<double> z_loss{};  // unweighted, where it is part of the objective
  double gradient_norm = 0;        // of all gradients, before clipping
  std::int64_t num_labels = 0;
  std::vector<LayerBalance> experts{};  // a MoE layer
};

struct GradientNorm {
  std::string parameter;
  double norm = 0;  // L2, before clipping
};

// Prints nothing and catches no signal. Sessions are independent of each other and of engines; each
// is used from one thread at a time.
class ANABATIC_API Session {
 public:
  // Plans the step within memory.budget, takes the memory and fills the parameters, as model.init
  // says. InvalidArgument lists every problem; BudgetError (anabatic/plan.h) where no plan fits.
  // `listener`, which must outlive the session, hears messages and the plan.
  explicit Session(const Config& config, RunListener* listener = nullptr);
  // From text. Settings win over the YAML file, when one is given.
  explicit Session(const Settings& settings, const std::string& yaml_file = "",
                   RunListener* listener = nullptr);
  ~Session();
  Session(Session&&) noexcept;

  const PlanSummary& plan() const;
  std::int64_t sequence_length() const;
  std::int64_t sequences_per_step() const;  // micro_batch_size * gradient_accumulation_steps
  std::int64_t vocabulary() const;          // token ids are below
  std::int64_t num_steps() const;           // done, in this session and before its checkpoint

  // One training step on at most sequences_per_step() sequences. Without a label to learn, it is an
  // InvalidArgument, as bad tokens are; nothing has changed then. A loss or a gradient that is not
  // finite is an Error, and the parameters are those before the step.
  StepResult step(std::span<const Sequence> batch, double learning_rate);
  // Of each parameter, of the step that ran last, in the order of the model. Empty before the first
  // one.
  std::vector<GradientNorm> gradient_norms() const;
  // The loss on any number of sequences; changes nothing.
  EvaluationSummary evaluate(std::span<const Sequence> sequences);
  std::string generate(const std::string& prompt);  // the continuation, by generate.* of the config

  // Parameters and optimizer state, in the order of their names.
  const std::vector<StateInfo>& states() const;
  // Elements [first, first + values.size()) of a state, row-major, as f32. Unsupported for 8-bit
  // moments.
  void read(const std::string& state, std::int64_t first, std::span<float> values) const;
  void write(const std::string& state, std::int64_t first, std::span<const float> values);

  // Writes DIRECTORY/step-N, which Hugging Face loads and restore() goes on from, bit for bit.
  // Returns its path. Durable when it returns; a failure leaves no step-N.
  std::string save(const std::string& directory);
  // Takes parameters, optimizer state and the number of steps from such a checkpoint, whose every
  // byte is compared with its checksums. InvalidArgument where it is another model's.
  void restore(const std::string& checkpoint);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic
