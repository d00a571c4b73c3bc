// SPDX-License-Identifier: Apache-2.0
#include "spec/dropout.h"

#include <cmath>

#include "base/philox.h"

namespace anabatic::spec {

std::int64_t dropout_threshold(double rate) {
  return std::llround(rate * static_cast<double>(kDropoutSteps));
}

float dropout_scale(double rate) {
  return static_cast<float>(static_cast<double>(kDropoutSteps) /
                            static_cast<double>(kDropoutSteps - dropout_threshold(rate)));
}

std::uint32_t dropout_bits(const PhiloxKey& key, std::uint64_t stream, std::uint32_t row,
                           std::int64_t column) {
  const std::int64_t group =
      column / kDropoutColumns * kDropoutCalls + column % (2 * kDropoutCalls) / 2;
  const PhiloxCounter words =
      philox({row, static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(stream),
              static_cast<std::uint32_t>(stream >> 32)},
             key);
  const auto word = static_cast<std::size_t>(column % kDropoutColumns / (2 * kDropoutCalls));
  return words[word] >> (column % 2 * 16) & 0xFFFFu;
}

DropoutDraws dropout_draws(std::uint64_t seed, std::int64_t step, std::int64_t first_row) {
  const std::uint64_t key =
      random_bits(seed, stream_of(kDropoutDraws), static_cast<std::uint64_t>(step));
  return {static_cast<std::int32_t>(key), static_cast<std::int32_t>(key >> 32),
          static_cast<std::int32_t>(first_row)};
}

}  // namespace anabatic::spec
