// SPDX-License-Identifier: Apache-2.0
// Events of a run, and how the host ends it. The library prints nothing and installs no signal
// handler: a host derives from RunListener and overrides the events that it needs.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "anabatic/export.h"
#include "anabatic/severity.h"

namespace anabatic {

// How evenly tokens were routed to the experts of one MoE layer. A share is relative to the mean
// over the layer's experts. 0 without tokens.
struct LayerBalance {
  std::int64_t layer = 0;
  double max_over_mean = 0, min_over_mean = 0;
  std::int64_t below_tenth = 0;  // experts with less than a tenth of the mean
};

// What exchanges with other ranks took of a step, at one rank.
struct CommMetrics {
  std::int64_t bytes = 0;                  // sent to other ranks
  double busy_s = 0;                       // in copies and sums
  double exposed_s = 0;                    // in which the step waited for them
  std::optional<std::int64_t> waited_for;  // the rank that most of this was lost to; empty: none
};

// What int8 products of one unit counted of the rows that they quantised in a step: the input of
// its layer in the forward, or the gradient of its output in the backward.
struct Int8Counts {
  std::string unit;          // the weight's name without ".weight"
  bool of_gradient = false;  // of its output; else of its input
  double largest = 0;        // magnitude
  double zeroed = 0;         // share of the elements other than 0 whose int8 value is 0
  double fallback = 0;       // share of blocks that were multiplied with 16 bits
};

// Means over the pairs of a step (train.objective: dpo).
struct PreferenceMetrics {
  std::int64_t pairs = 0;
  double accuracy = 0;  // share of pairs whose chosen completion has the larger reward
  double margin = 0;    // of rewards: z
  // beta times what the log-probability is above the reference's.
  double chosen_reward = 0, rejected_reward = 0;
  // A completion's sum over its tokens; their mean with dpo.length_normalized, and for ipo.
  double chosen_log_probability = 0, rejected_log_probability = 0;
  double chosen_tokens = 0, rejected_tokens = 0;
};

// Masks of an entry of sparsity.weights that were chosen before a step.
struct SparsityMetrics {
  std::string units;      // "experts.down"
  std::string pattern{};  // "block32"
  double density = 1;     // the share of blocks, or of weights, that are present
  bool is_final = false;  // they stay from here on
};

// One training step.
struct StepMetrics {
  std::int64_t step = 0, steps = 0, epoch = 0, tokens = 0;  // tokens: unmasked labels of the step
  double loss = 0;                 // cross-entropy alone, mean over the step's unmasked tokens;
                                   // with train.objective: dpo the mean over its pairs
  double aux_loss = 0;             // train.balance_loss without its weight; 0 without MoE layers
  std::optional<double> z_loss;    // without its weight, if it is part of the objective
  std::optional<double> mtp_loss;  // likewise, of multi-token prediction
  double grad_norm = 0, learning_rate = 0;
  std::optional<double> loss_scale;  // what the loss was multiplied by; empty where nothing
  bool is_skipped = false;           // a gradient was not finite, and nothing was updated
  double step_time_s = 0, tokens_per_second = 0, tflops = 0;  // of input tokens
  std::optional<double> mfu;           // empty if the machine's peak is not known
  std::int64_t peak_memory_bytes = 0;  // 0 if the system does not report it
  std::int64_t planned_memory_bytes = 0;
  std::vector<LayerBalance> experts;              // one for each MoE layer, over all micro-batches
  std::optional<CommMetrics> comm;                // empty with one rank
  std::optional<PreferenceMetrics> preference{};  // empty but for train.objective: dpo
  std::vector<SparsityMetrics> sparsity{};        // empty where no mask was chosen
  std::vector<Int8Counts> int8{};                 // of each unit with int8 products
  // Of all of them together; empty without int8 products.
  std::optional<double> int8_zeroed{}, int8_fallback{};
};

// The loss of a model on held-out data.
struct EvaluationSummary {
  double loss = 0;        // mean over all unmasked tokens, nats
  double perplexity = 0;  // exp(loss)
  std::int64_t tokens = 0;
  std::vector<LayerBalance> experts{};  // one for each MoE layer
  // Where data are pairs; loss is the mean over them then, and perplexity says nothing.
  std::optional<PreferenceMetrics> preference{};
};

// Bytes of one kind of use: "parameters", "saved activations".
struct MemoryShare {
  std::string name;
  std::int64_t bytes = 0;
};

// The memory that a run will need and the time of a step, known before the first step.
struct PlanSummary {
  std::int64_t peak_memory_bytes = 0;
  // false: peak_memory_bytes does not include the memory of the process itself
  bool counts_process = true;
  std::vector<MemoryShare> memory;  // largest first; their sum is the peak
  std::int64_t num_choices = 0;     // values recomputed, compressed or on disk to save memory
  std::string disk;                 // what is on disk and what that costs; empty if not asked for
  double step_seconds = 0;
  std::string price_source;  // where the prices for step_seconds come from
  std::string text;          // the whole plan: every use of memory, every choice
  std::string file;          // a file with the same text, and bytes by layer
};

class ANABATIC_API RunListener {
 public:
  virtual ~RunListener() = default;

  virtual void on_message(Severity /*severity*/, const std::string& /*text*/) {}
  virtual void on_plan(const PlanSummary& /*plan*/) {}
  virtual void on_step(const StepMetrics& /*metrics*/) {}
  virtual void on_validation(std::int64_t /*step*/, const EvaluationSummary& /*evaluation*/) {}
  virtual void on_checkpoint(std::int64_t /*step*/, const std::string& /*directory*/) {}
  // Called between steps. True ends the run after this step. A checkpoint is written, from which
  // the same settings resume.
  virtual bool stop_requested() { return false; }
};

}  // namespace anabatic
