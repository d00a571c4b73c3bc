// SPDX-License-Identifier: Apache-2.0
#include "io/data/loader.h"

#include <limits>

#include "base/error.h"

namespace anabatic::io {

void fill_micro_batch(const Dataset& dataset, std::span<const std::int64_t> samples,
                      MicroBatch& batch, SampleScratch& scratch) {
  const auto length = static_cast<std::size_t>(dataset.options().sequence_length);
  const std::size_t rows = samples.size() * length;
  ANABATIC_REQUIRE(rows <= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
                   "[data] expected a micro-batch of fewer than 2^31 tokens, got {} samples of {}",
                   samples.size(), length);
  for (auto* array : {&batch.tokens, &batch.labels, &batch.positions, &batch.key_begin,
                      &batch.key_end, &batch.documents}) {
    array->resize(rows);
  }
  batch.weights.resize(dataset.has_weights() ? rows : 0);
  batch.completions.resize(dataset.has_pairs() ? rows : 0);
  batch.reference.resize(dataset.has_pairs() ? rows : 0);
  batch.samples.assign(samples.begin(), samples.end());
  batch.unmasked_tokens = batch.real_tokens = batch.num_documents = 0;
  batch.sum_of_weights = 0;
  for (std::size_t b = 0; b < samples.size(); ++b) {
    const auto part = [&](std::vector<std::int32_t>& array) {
      return std::span(array).subspan(b * length, length);
    };
    SampleRows view{part(batch.tokens),    part(batch.labels),  part(batch.positions),
                    part(batch.key_begin), part(batch.key_end), part(batch.documents)};
    if (dataset.has_weights()) view.weights = std::span(batch.weights).subspan(b * length, length);
    const auto first_row = static_cast<std::int32_t>(b * length);
    if (dataset.has_pairs()) {
      view.completions = part(batch.completions);
      view.reference = std::span(batch.reference).subspan(b * length, length);
      view.first_completion = static_cast<std::int32_t>(batch.num_documents);
    }
    if (samples[b] < 0) {
      dataset.read_padding(first_row, view);
    } else {
      const SampleCounts counts = dataset.read(samples[b], first_row, view, scratch);
      batch.unmasked_tokens += counts.labels;
      batch.real_tokens += counts.tokens;
      batch.num_documents += counts.documents;
      batch.sum_of_weights += counts.weight;
    }
  }
}

void StepBatch::clear_counts() {
  unmasked_tokens = real_tokens = num_documents = 0;
  label_weight = 0;
}

void StepBatch::count(const MicroBatch& micro_batch) {
  unmasked_tokens += micro_batch.unmasked_tokens;
  real_tokens += micro_batch.real_tokens;
  num_documents += micro_batch.num_documents;
  label_weight += micro_batch.label_weight();
}

Loader::Loader(const Dataset& dataset, const LoaderOptions& options)
    : dataset_(dataset),
      options_(options),
      samples_per_step_(options.micro_batch_size * options.accumulation_steps * options.num_parts),
      order_(dataset.num_samples(), options.seed, options.shuffle) {
  ANABATIC_REQUIRE(options.micro_batch_size > 0 && options.accumulation_steps > 0,
                   "[data] expected a positive micro-batch size and accumulation, got {} and {}",
                   options.micro_batch_size, options.accumulation_steps);
  ANABATIC_REQUIRE(options.part >= 0 && options.part < options.num_parts,
                   "[data] expected a part below {}, got {}", options.num_parts, options.part);
  samples_.resize(static_cast<std::size_t>(options.micro_batch_size));
  if (options.prefetch) thread_ = std::thread([this] { prefetch_loop(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Loader::read_step(std::int64_t step, StepBatch& batch) {
  batch.step = -1;  // until the step is whole
  batch.epoch = order_.epoch(step * samples_per_step_);
  batch.clear_counts();
  batch.micro_batches.resize(static_cast<std::size_t>(options_.accumulation_steps));
  std::int64_t slot = options_.part * (samples_per_step_ / options_.num_parts);
  for (MicroBatch& micro_batch : batch.micro_batches) {
    for (std::int64_t& sample : samples_) sample = sample_index(step, slot++);
    fill_micro_batch(dataset_, samples_, micro_batch, scratch_);
    batch.count(micro_batch);
  }
  batch.step = step;
}

void Loader::prefetch_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_stopping_ || requested_step_ >= 0; });
    if (is_stopping_) return;
    const std::int64_t step = requested_step_;
    StepBatch& batch = buffers_[1 - current_];
    lock.unlock();
    try {
      read_step(step, batch);
    } catch (...) {
      // batch.step stays -1: load_step reads the step again and throws to the caller.
    }
    lock.lock();
    requested_step_ = -1;
    changed_.notify_all();
  }
}

void Loader::wait_until_idle(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return requested_step_ < 0; });
}

const StepBatch& Loader::load_step(std::int64_t step) {
  ANABATIC_REQUIRE(
      step >= 0 && step < std::numeric_limits<std::int64_t>::max() / samples_per_step_ - 1,
      "[data] expected a step of at least 0, got {}", step);
  std::unique_lock lock(mutex_);
  wait_until_idle(lock);
  StepBatch& next = buffers_[1 - current_];
  if (next.step != step) read_step(step, next);
  current_ = 1 - current_;
  if (options_.prefetch) {
    requested_step_ = step + 1;
    lock.unlock();
    changed_.notify_all();
  }
  return buffers_[current_];
}

}  // namespace anabatic::io
