// SPDX-License-Identifier: Apache-2.0
// Small graphs to plan, and steps run from start to end with seeded weights and batches.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lower/compile.h"
#include "runtime/executor.h"

namespace anabatic::testing {

inline constexpr std::int64_t kNumTokens = 6;
inline constexpr std::int64_t kVocabulary = 11;

// A random DAG of linear, add, scale and activations over shared parameters, with a cross-entropy
// at its end. Some parameters have several readers.
ir::Graph random_graph(std::uint64_t seed);

// `num_layers` MoE blocks between an embedding and a head, with load-balancing loss. Tied:
// embedding and head are one parameter. `activation`: of the experts, with a gate or without.
// `has_biases`: experts have them, those of the last product after the combine.
ir::Graph moe_graph(int num_layers, bool is_tied, std::string_view activation = "swiglu",
                    bool has_biases = false);
inline ir::Graph tied_moe_graph(int num_layers) { return moe_graph(num_layers, true); }

struct StepsOptions {
  lower::CompileOptions compile{};
  runtime::ExecutorOptions executor{};
  runtime::Observer observer{};
  int begin_step = 0, end_step = 2;
  int begin_micro_batch = 0, end_micro_batch = 2;
  int num_threads = 1;
  std::uint64_t seed = 1;
  std::int64_t num_tokens_used = kVocabulary;  // after step 0, tokens are drawn below it
  bool same_batch = false;                     // every step sees the first step's tokens
};

struct StepsResult {
  std::vector<float> losses;                                // per step, over its micro-batches
  std::map<std::string, std::vector<std::byte>> states;     // after the last step
  std::map<std::string, std::vector<std::byte>> gradients;  // before the last step's update
  std::map<std::string, std::vector<float>> float_gradients;
  std::int64_t peak_bytes = 0;
};

StepsResult run_steps(const ir::Graph& forward, const StepsOptions& options);

// A pass that rounds in other places: each gradient of `got` is as near to that of the ref kernels
// in fp32 as the one of `separate`, the ops apart under `options`, but for a factor of 2 and
// `least` of its norm. What the ops apart are off by is a measure of the rounding noise, and a
// small one.
void expect_gradients_as_near(const ir::Graph& graph, const StepsOptions& options,
                              const StepsResult& got, const StepsResult& separate, double least);

// Draws weights of every parameter by name, in fp32.
void initialise(const lower::Compiled& compiled, runtime::StateStore& store, std::uint64_t seed);
// Fills every input of the program for one micro-batch.
void fill_inputs(const lower::Compiled& compiled, runtime::Executor& executor,
                 const StepsOptions& options, int step, int micro_batch);

}  // namespace anabatic::testing
