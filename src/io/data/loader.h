// SPDX-License-Identifier: Apache-2.0
// Whole training steps from a dataset, read one step in advance by a separate thread.
#pragma once
#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "io/data/dataset.h"
#include "io/data/shuffle.h"

namespace anabatic::io {

// All arrays are [T], T = micro_batch_size * sequence_length; sample b has rows [b*L, (b+1)*L).
struct MicroBatch {
  std::vector<std::int32_t> tokens, labels, positions, key_begin, key_end;
  std::vector<std::int32_t> documents;  // the row where the token's document begins; -1: padding
  std::vector<float> weights{};         // of the labels; empty: 1 each
  // Of preferences: the completion that each label belongs to, 2p the chosen one of pair p and
  // 2p + 1 the rejected one, else -1; and the label's log-probability by the reference.
  std::vector<std::int32_t> completions{};
  std::vector<float> reference{};
  std::vector<std::int64_t> samples;  // of the dataset; -1: padding only
  std::int64_t unmasked_tokens = 0;   // labels that are not ignored, of a weight other than 0
  double sum_of_weights = 0;          // of these; use label_weight()
  std::int64_t real_tokens = 0;       // rows that are not padding
  std::int64_t num_documents = 0;     // pieces of documents, each in one sample

  // What the loss of the micro-batch is divided by: of preferences the number of pairs.
  double label_weight() const {
    if (!completions.empty()) return static_cast<double>(num_documents / 2);
    return weights.empty() ? static_cast<double>(unmasked_tokens) : sum_of_weights;
  }
};

// Reads these samples (-1: padding) into the arrays, which are resized on first use.
void fill_micro_batch(const Dataset& dataset, std::span<const std::int64_t> samples,
                      MicroBatch& batch, SampleScratch& scratch);

struct StepBatch {
  std::int64_t step = -1;
  std::int64_t epoch = 0;  // of the step's first sample; counts from 0
  std::int64_t unmasked_tokens = 0, real_tokens = 0, num_documents = 0;
  double label_weight = 0;
  std::vector<MicroBatch> micro_batches;

  void clear_counts();
  void count(const MicroBatch& micro_batch);  // adds those of one
};

struct LoaderOptions {
  std::int64_t micro_batch_size = 1;
  std::int64_t accumulation_steps = 1;
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool prefetch = true;
  // Several ranks share a step: which of so many parts this loader reads.
  std::int64_t part = 0, num_parts = 1;
};

// Step s takes places s*S .. s*S+S-1 of the sample order, S = micro_batch_size *
// accumulation_steps * num_parts, of which part d are those from d*S/num_parts on. A step may span
// two epochs. What a step holds is a pure function of the dataset, these options and s, so the
// cursor of a checkpoint is the step alone. Two buffers, allocated by the first two steps. Use from
// one thread; `dataset` must outlive the loader.
class Loader {
 public:
  Loader(const Dataset& dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Valid until the next call. Starts reading step + 1 in the background; an error there is thrown
  // when that step is asked for.
  const StepBatch& load_step(std::int64_t step);

  // The sample in place `slot` of a step, below its number of samples.
  std::int64_t sample_index(std::int64_t step, std::int64_t slot) const {
    return order_.sample(step * samples_per_step_ + slot);
  }

 private:
  void read_step(std::int64_t step, StepBatch& batch);
  void prefetch_loop();
  void wait_until_idle(std::unique_lock<std::mutex>& lock);

  const Dataset& dataset_;
  LoaderOptions options_;
  std::int64_t samples_per_step_;  // of all parts
  SampleOrder order_;
  std::array<StepBatch, 2> buffers_;
  std::vector<std::int64_t> samples_;
  SampleScratch scratch_;
  std::size_t current_ = 0;  // the buffer given out; the other one is the thread's while it is busy

  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t requested_step_ = -1;  // -1: idle
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace anabatic::io
