// SPDX-License-Identifier: Apache-2.0
#include "io/data/shuffle.h"

#include <bit>

#include "base/error.h"
#include "base/philox.h"

namespace anabatic::io {
namespace {

constexpr int kRounds = 6;
constexpr std::uint64_t kShuffleStream = 0x73687566666C65;  // "shuffle"

}  // namespace

Permutation::Permutation(std::uint64_t size, std::uint64_t key)
    : size_(size),
      key_(key),
      half_bits_(static_cast<unsigned>((std::bit_width(size > 0 ? size - 1 : 0) + 1) / 2)) {}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t mixed =
        left ^ (random_bits(key_, static_cast<std::uint64_t>(round), right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  ANABATIC_CHECK(index < size_, "[shuffle] index {} of {}", index, size_);
  if (size_ == 1) return 0;
  do {
    index = encrypt(index);
  } while (index >= size_);
  return index;
}

std::int64_t SampleOrder::sample(std::int64_t index) const {
  const std::int64_t place = index % num_samples_;
  if (!shuffle_) return place;
  const std::uint64_t key =
      random_bits(seed_, kShuffleStream, static_cast<std::uint64_t>(epoch(index)));
  return static_cast<std::int64_t>(Permutation(static_cast<std::uint64_t>(num_samples_),
                                               key)(static_cast<std::uint64_t>(place)));
}

}  // namespace anabatic::io
