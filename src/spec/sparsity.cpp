// SPDX-License-Identifier: Apache-2.0
#include "spec/sparsity.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rounding.h"

namespace anabatic::spec {
namespace {

// In the order of SparsityPattern.
constexpr std::array<std::string_view, kSparsityPatterns.size()> kPatternWords{
    "block32", "block16", "2:4", "unstructured"};

constexpr std::int64_t kGroup = 4;  // weights of which 2:4 keeps two

}  // namespace

std::string_view to_string(SparsityPattern pattern) {
  return kPatternWords.at(static_cast<std::size_t>(pattern));
}

std::optional<SparsityPattern> sparsity_pattern_from_string(std::string_view text) {
  for (const SparsityPattern pattern : kSparsityPatterns)
    if (to_string(pattern) == text) return pattern;
  return std::nullopt;
}

std::int64_t mask_block(SparsityPattern pattern) {
  switch (pattern) {
    case SparsityPattern::kBlock32:
      return 32;
    case SparsityPattern::kBlock16:
      return 16;
    case SparsityPattern::kTwoOfFour:
    case SparsityPattern::kUnstructured:
      break;
  }
  return 1;
}

std::optional<SparsityPattern> mask_of(const Attributes& attributes) {
  if (!attributes.contains(kMaskAttribute)) return std::nullopt;
  const std::string& word = get_string(attributes, kMaskAttribute);
  const std::optional<SparsityPattern> pattern = sparsity_pattern_from_string(word);
  ANABATIC_REQUIRE(
      pattern.has_value(), "[sparsity] expected '{}' to be one of {}, {}, {} or {}, got '{}'",
      kMaskAttribute, kPatternWords[0], kPatternWords[1], kPatternWords[2], kPatternWords[3], word);
  return pattern;
}

std::int64_t kept_of(const Attributes& attributes) {
  if (!attributes.contains(kKeptAttribute)) return 0;
  const std::int64_t kept = get_int(attributes, kKeptAttribute);
  ANABATIC_REQUIRE(kept > 0 && attributes.contains(kMaskAttribute),
                   "[sparsity] expected '{}' to be positive and with '{}', got {}", kKeptAttribute,
                   kMaskAttribute, kept);
  return kept;
}

double density_of(const Attributes& attributes, const TensorType& weight) {
  const std::int64_t kept = kept_of(attributes);
  if (kept == 0) return 1;
  return static_cast<double>(kept) /
         static_cast<double>(num_blocks(*mask_of(attributes), weight.dim(-2), weight.dim(-1)));
}

TensorType mask_type(SparsityPattern pattern, const TensorType& weight) {
  ANABATIC_REQUIRE(weight.ndim() == 2 || weight.ndim() == 3,
                   "[sparsity] expected a matrix or a stack of matrices, got {}",
                   to_string(weight));
  std::vector<std::int64_t> shape = weight.shape;
  for (auto side = shape.end() - 2; side != shape.end(); ++side)
    *side = ceil_div(*side, mask_block(pattern));
  return tensor_type(DType::kUInt8, std::move(shape));
}

std::int64_t num_blocks(SparsityPattern pattern, std::int64_t rows, std::int64_t columns) {
  return ceil_div(rows, mask_block(pattern)) * ceil_div(columns, mask_block(pattern));
}

std::int64_t kept_blocks(SparsityPattern pattern, std::int64_t rows, std::int64_t columns,
                         double density) {
  const std::int64_t blocks = num_blocks(pattern, rows, columns);
  const auto share = [](double of, std::int64_t all) {
    return static_cast<std::int64_t>(std::llround(of * static_cast<double>(all)));
  };
  if (pattern == SparsityPattern::kTwoOfFour) {
    const std::int64_t groups = blocks / kGroup;
    return blocks - kGroup / 2 * std::min(groups, share(2 * (1 - density), groups));
  }
  return std::clamp<std::int64_t>(share(density, blocks), std::min<std::int64_t>(blocks, 1),
                                  blocks);
}

bool SparsitySchedule::is_due(std::int64_t step) const {
  return step >= begin && step <= end && ((step - begin) % every == 0 || step == end);
}

double SparsitySchedule::density_after(std::int64_t step, double density) const {
  if (step < begin) return 1;
  if (step >= end) return density;
  const std::int64_t chosen = (step - begin) / every * every;
  const double left = 1 - static_cast<double>(chosen) / static_cast<double>(end - begin);
  return density + (1 - density) * left * left * left;
}

}  // namespace anabatic::spec
