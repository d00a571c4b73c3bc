// SPDX-License-Identifier: Apache-2.0
// The order of samples as a pure function of (seed, epoch): O(1) memory, any index at once.
#pragma once
#include <cstdint>

namespace anabatic::io {

// A permutation of [0, size) keyed by `key`: a balanced Feistel network over Philox on the next
// power of four, walked until it lands inside (at most four steps on average).
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t key);
  std::uint64_t operator()(std::uint64_t index) const;  // index < size

 private:
  std::uint64_t encrypt(std::uint64_t value) const;

  std::uint64_t size_;
  std::uint64_t key_;
  unsigned half_bits_;
};

// Sample of place `index` in the endless sequence of epochs: place / num_samples is the epoch.
// Shuffled epochs are permutations of their own; otherwise samples come in order.
class SampleOrder {
 public:
  SampleOrder(std::int64_t num_samples, std::uint64_t seed, bool shuffle)
      : num_samples_(num_samples), seed_(seed), shuffle_(shuffle) {}
  std::int64_t epoch(std::int64_t index) const { return index / num_samples_; }
  std::int64_t sample(std::int64_t index) const;

 private:
  std::int64_t num_samples_;
  std::uint64_t seed_;
  bool shuffle_;
};

}  // namespace anabatic::io
