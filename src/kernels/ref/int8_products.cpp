// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/int8_products.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tensor/dtype.h"
#include "tensor/largest_int8.h"

namespace anabatic::kernels::ref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr float kLeastMagnitude =
    0x1p-100f;  // a block whose largest element is below is all zeroes

float scale_of_largest(float largest, bool is_finite, float levels) {
  if (!is_finite) return std::numeric_limits<float>::quiet_NaN();
  return largest < kLeastMagnitude ? 0.0f : to_float(to_bfloat16_up(largest / levels));
}

// To a whole number, ties to even, of a magnitude below 2^22.
std::int16_t nearest(float x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 · 2^23
  return static_cast<std::int16_t>(x + kRounder - kRounder);
}

// `levels`: the code of the largest element.
CodedLines coded(const std::vector<float>& x, std::int64_t lines, std::int64_t depth,
                 std::int64_t tile_lines, float levels = kLargestInt8) {
  CodedLines result{.lines = lines, .depth = depth};
  const std::int64_t blocks = result.blocks();
  result.codes.resize(x.size());
  result.second_codes.resize(x.size());
  result.scales.resize(static_cast<std::size_t>(lines * blocks));
  result.falls_back.resize(result.scales.size());
  for (std::int64_t line = 0; line < lines; ++line)
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t tile = line / tile_lines * tile_lines;
      float largest = 0;
      bool is_finite = true;
      for (std::int64_t i = tile; i < std::min(lines, tile + tile_lines); ++i)
        for (std::int64_t k = b * kBlock; k < std::min(depth, (b + 1) * kBlock); ++k) {
          const float value = x[static_cast<std::size_t>(i * depth + k)];
          is_finite &= std::isfinite(value);
          largest = std::max(largest, std::abs(value));
        }
      const float scale = scale_of_largest(largest, is_finite, levels);
      result.scales[static_cast<std::size_t>(line * blocks + b)] = scale;
      for (std::int64_t k = b * kBlock; k < std::min(depth, (b + 1) * kBlock); ++k) {
        const auto at = static_cast<std::size_t>(line * depth + k);
        if (scale > 0) result.codes[at] = nearest(x[at] * (1.0f / scale));
      }
    }
  return result;
}

}  // namespace

float scale_of_largest(float largest) {
  return scale_of_largest(largest, std::isfinite(largest), kLargestInt8);
}

CodedLines code_lines(const std::vector<float>& x, std::int64_t lines, std::int64_t depth,
                      int fallback) {
  CodedLines result = coded(x, lines, depth, 1);
  for (std::size_t block = 0; block < result.scales.size(); ++block) {
    const float scale = result.scales[block];
    if (!(scale > 0)) continue;
    const std::int64_t line = static_cast<std::int64_t>(block) / result.blocks(),
                       begin = static_cast<std::int64_t>(block) % result.blocks() * kBlock,
                       end = std::min(depth, begin + kBlock);
    std::int64_t most = 0, total = 0;
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t size = std::abs(result.codes[static_cast<std::size_t>(line * depth + k)]);
      most = std::max(most, size);
      total += size;
    }
    if ((end - begin) * most <= fallback * total) continue;
    result.falls_back[block] = true;
    const float factor = 254.0f * (1.0f / scale);
    for (std::int64_t k = begin; k < end; ++k) {
      const auto at = static_cast<std::size_t>(line * depth + k);
      const float rest = x[at] - scale * static_cast<float>(result.codes[at]);
      result.second_codes[at] = nearest(rest * factor);
    }
  }
  return result;
}

CodingCounts counts_of(const CodedLines& lines, const std::vector<float>& x) {
  CodingCounts counts;
  for (std::size_t block = 0; block < lines.scales.size(); ++block) {
    ++counts.blocks;
    counts.fallbacks += lines.falls_back[block];
    const std::int64_t line = static_cast<std::int64_t>(block) / lines.blocks(),
                       begin = static_cast<std::int64_t>(block) % lines.blocks() * kBlock;
    for (std::int64_t k = begin; k < std::min(lines.depth, begin + kBlock); ++k) {
      const auto at = static_cast<std::size_t>(line * lines.depth + k);
      counts.largest = std::max(counts.largest, std::bit_cast<std::uint32_t>(std::abs(x[at])));
      if (std::isnan(lines.scales[block]) || x[at] == 0) continue;
      ++counts.elements;
      counts.zeroed += lines.codes[at] == 0;
    }
  }
  return counts;
}

CodedLines code_positive_lines(const std::vector<float>& x, std::int64_t lines,
                               std::int64_t depth) {
  return coded(x, lines, depth, 1, kLargestUInt8);
}

CodedLines code_tiles(const std::vector<float>& w, std::int64_t lines, std::int64_t depth) {
  return coded(w, lines, depth, kBlock);
}

CodedLines transposed_tiles(const CodedLines& w) {
  CodedLines result{.lines = w.depth, .depth = w.lines};
  result.codes.resize(w.codes.size());
  result.second_codes.resize(w.codes.size());
  for (std::int64_t i = 0; i < result.lines; ++i) {
    for (std::int64_t k = 0; k < result.depth; ++k)
      result.codes[static_cast<std::size_t>(i * result.depth + k)] =
          w.codes[static_cast<std::size_t>(k * w.depth + i)];
    for (std::int64_t b = 0; b < result.blocks(); ++b)
      result.scales.push_back(
          w.scales[static_cast<std::size_t>(b * kBlock * w.blocks() + i / kBlock)]);
  }
  result.falls_back.resize(result.scales.size());
  return result;
}

void add_int8_product(const CodedLines& a, const CodedLines& b, std::vector<float>& y) {
  constexpr float kSecond = 1.0f / 254.0f;
  const auto sum = [&](const std::vector<std::int16_t>& left,
                       const std::vector<std::int16_t>& right, std::int64_t i, std::int64_t j,
                       std::int64_t block) {
    std::int64_t total = 0;
    for (std::int64_t k = block * kBlock; k < std::min(a.depth, (block + 1) * kBlock); ++k)
      total += std::int64_t{left[static_cast<std::size_t>(i * a.depth + k)]} *
               right[static_cast<std::size_t>(j * b.depth + k)];
    return static_cast<float>(total);
  };
  for (std::int64_t i = 0; i < a.lines; ++i)
    for (std::int64_t j = 0; j < b.lines; ++j) {
      float& chain = y[static_cast<std::size_t>(i * b.lines + j)];
      for (std::int64_t block = 0; block < a.blocks(); ++block) {
        const auto left = static_cast<std::size_t>(i * a.blocks() + block),
                   right = static_cast<std::size_t>(j * b.blocks() + block);
        const float scale = a.scales[left] * b.scales[right];
        chain = std::fma(sum(a.codes, b.codes, i, j, block), scale, chain);
        if (a.falls_back[left])
          chain = std::fma(sum(a.second_codes, b.codes, i, j, block), scale * kSecond, chain);
        if (b.falls_back[right])
          chain = std::fma(sum(a.codes, b.second_codes, i, j, block), scale * kSecond, chain);
      }
    }
}

}  // namespace anabatic::kernels::ref
