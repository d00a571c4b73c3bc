// SPDX-License-Identifier: Apache-2.0
#include "train/lora/quantized_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "io/block_types.h"

namespace anabatic::train {
namespace {

// Elements and scales of the blocks of a row, or of several.
std::span<std::byte> mxfp4_pairs(const TensorView& state, std::int64_t first, std::size_t count) {
  return {state.data + first / 2, count / 2};
}
std::span<std::byte> mxfp4_scales(const TensorView& state, std::int64_t first, std::size_t count) {
  constexpr std::int64_t kBlock = mxfp4_format().columns;
  return {state.scales<std::byte>() + first / kBlock, count / kBlock};
}

void write_mxfp4_row(const TensorView& state, std::int64_t row, std::span<const float> values) {
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  ANABATIC_REQUIRE(bad == values.end(),
                   "[quantized rows] expected finite weights for MXFP4, got {} in row {} of {}",
                   *bad, row, to_string(*state.type));
  const std::int64_t first = row * std::ssize(values);
  io::quantise_mxfp4_pairs(values, mxfp4_pairs(state, first, values.size()),
                           mxfp4_scales(state, first, values.size()));
}

void write_row(const TensorView& state, std::int64_t row, std::span<const float> values) {
  const std::int64_t width = std::ssize(values), block = state.type->blocks->columns,
                     scales = scale_columns(*state.type);
  if (is_mxfp4(*state.type)) return write_mxfp4_row(state, row, values);
  for (std::int64_t b = 0; b < scales; ++b) {
    const std::int64_t first = b * block, count = std::min(block, width - first);
    state.scales<BFloat16>()[row * scales + b] = quantize_block(
        values.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
        state.as<std::int8_t>() + row * width + first);
  }
}

}  // namespace

BFloat16 quantize_block(std::span<const float> values, std::int8_t* elements) {
  constexpr float kSmallest = 0x1p-100f;  // a block whose largest element is below is all zeroes
  constexpr float kLargestElement = 127;
  float largest = 0;
  bool is_finite = true;
  for (const float value : values) {
    largest = std::max(largest, std::abs(value));
    is_finite &= std::isfinite(value);
  }
  if (!is_finite || largest < kSmallest) {
    std::fill_n(elements, values.size(), std::int8_t{0});
    return to_bfloat16(is_finite ? 0.0f : std::numeric_limits<float>::quiet_NaN());
  }
  const BFloat16 scale = to_bfloat16_up(largest / kLargestElement);
  const float inverse = 1.0f / to_float(scale);
  for (std::size_t i = 0; i < values.size(); ++i)
    elements[i] = static_cast<std::int8_t>(std::nearbyint(values[i] * inverse));
  return scale;
}

void QuantizedRows::write(const TensorView& state, std::int64_t first,
                          std::span<const float> values) {
  ANABATIC_CHECK(state.type->layout == kRowMajor &&
                     (is_mxfp4(*state.type) ||
                      *state.type->blocks == int8_format(state.type->blocks->columns)),
                 "[quantized rows] {} is not in int8 or MXFP4 by rows", to_string(*state.type));
  const std::int64_t width = state.type->dim(-1);
  while (!values.empty()) {
    const std::int64_t row = first / width, column = first % width,
                       count = std::min(width - column, std::ssize(values));
    const std::span<const float> part = values.first(static_cast<std::size_t>(count));
    values = values.subspan(part.size());
    first += count;
    if (count == width) {
      write_row(state, row, part);
      continue;
    }
    const std::lock_guard lock(mutex_);
    std::vector<float>& begun = begun_[{state.data, row}];
    ANABATIC_CHECK(std::ssize(begun) == column, "[quantized rows] row {} has {} elements, not {}",
                   row, begun.size(), column);
    begun.insert(begun.end(), part.begin(), part.end());
    if (std::ssize(begun) < width) continue;
    write_row(state, row, begun);
    begun_.erase({state.data, row});
  }
}

void copy_mxfp4(const TensorView& state, std::int64_t first, std::span<const std::byte> pairs,
                std::span<const std::byte> scales) {
  const std::size_t count = 2 * pairs.size();
  std::ranges::copy(pairs, mxfp4_pairs(state, first, count).begin());
  std::ranges::copy(scales, mxfp4_scales(state, first, count).begin());
}

void QuantizedRows::require_complete() const {
  ANABATIC_CHECK(begun_.empty(), "[quantized rows] {} rows have begun and not ended",
                 begun_.size());
}

}  // namespace anabatic::train
