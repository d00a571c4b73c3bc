// SPDX-License-Identifier: Apache-2.0
// What a run says while it goes on, and how its host ends it. The library prints nothing and
// catches no signal: a host derives from RunListener and overrides what it wants to know.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "anabatic/export.h"
#include "anabatic/severity.h"

namespace anabatic {

// How evenly tokens went to the experts of one MoE layer; an expert's share is the mean over the
// layer's experts. 0 without tokens.
struct LayerBalance {
  std::int64_t layer = 0;
  double max_over_mean = 0, min_over_mean = 0;
  std::int64_t below_tenth = 0;  // experts that got less than a tenth of their share
};

// One training step.
struct StepMetrics {
  std::int64_t step = 0, steps = 0, epoch = 0, tokens = 0;  // tokens: unmasked labels of the step
  double loss = 0;      // of the language model alone, mean over the step's unmasked tokens
  double aux_loss = 0;  // unweighted, of train.balance_loss; 0 without MoE layers
  std::optional<double> z_loss;  // unweighted, when it is part of the objective
  double grad_norm = 0, learning_rate = 0;
  double step_time_s = 0, tokens_per_second = 0, tflops = 0;  // counts input tokens
  std::optional<double> mfu;           // none: what the machine does at best is not known
  std::int64_t peak_memory_bytes = 0;  // 0: the system does not say
  std::int64_t planned_memory_bytes = 0;
  std::vector<LayerBalance> experts;  // a MoE layer, of all micro-batches together
};

// The loss of a model on held-out data.
struct EvaluationSummary {
  double loss = 0;        // mean over all unmasked tokens, nats
  double perplexity = 0;  // exp(loss)
  std::int64_t tokens = 0;
  std::vector<LayerBalance> experts{};  // a MoE layer
};

// What one kind of consumer holds: "parameters", "saved activations".
struct MemoryShare {
  std::string name;
  std::int64_t bytes = 0;
};

// What a run will hold and how long a step will take, known before the first one.
struct PlanSummary {
  std::int64_t peak_memory_bytes = 0;
  bool counts_process = true;  // false: peak_memory_bytes is beside what the process itself takes
  std::vector<MemoryShare> memory;  // largest first; sums to the peak of the account
  std::int64_t num_choices = 0;     // values made again, compressed or on disk to save memory
  std::string disk;                 // what stands on disk and what that costs; empty: not asked
  double step_seconds = 0;
  std::string price_source;  // of step_seconds
  std::string text;          // all of it: every consumer, every choice
  std::string file;          // that holds the same, and bytes by layer
};

class ANABATIC_API RunListener {
 public:
  virtual ~RunListener() = default;

  virtual void on_message(Severity /*severity*/, const std::string& /*text*/) {}
  virtual void on_plan(const PlanSummary& /*plan*/) {}
  virtual void on_step(const StepMetrics& /*metrics*/) {}
  virtual void on_validation(std::int64_t /*step*/, const EvaluationSummary& /*evaluation*/) {}
  virtual void on_checkpoint(std::int64_t /*step*/, const std::string& /*directory*/) {}
  // Asked between steps. True ends the run as if this step were its last: a checkpoint is written,
  // from which the same settings go on.
  virtual bool stop_requested() { return false; }
};

}  // namespace anabatic
