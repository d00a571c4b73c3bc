// SPDX-License-Identifier: Apache-2.0
// Sparse weights: patterns of the elements that are present, their masks, and the schedule by which
// they become sparse.
//
// A mask says which blocks of a weight [N,K] or [E,N,K] are present: u8, 1 or 0, one a block, and
// [ceil(N / rows), ceil(K / columns)] for each matrix. The last blocks are shorter where rows or
// columns of the pattern do not divide those of the matrix. 2:4 and unstructured have one a weight.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/attributes.h"
#include "tensor/tensor_type.h"

namespace anabatic::spec {

enum class SparsityPattern : std::uint8_t {
  kBlock32,      // blocks of 32 x 32
  kBlock16,      // blocks of 16 x 16
  kTwoOfFour,    // two of four weights that follow one another in a row, along the input
  kUnstructured  // any weights of a matrix
};
inline constexpr std::array kSparsityPatterns{SparsityPattern::kBlock32, SparsityPattern::kBlock16,
                                              SparsityPattern::kTwoOfFour,
                                              SparsityPattern::kUnstructured};

std::string_view to_string(SparsityPattern pattern);  // "block32", "block16", "2:4", ...
std::optional<SparsityPattern> sparsity_pattern_from_string(std::string_view text);

// Rows and columns of the weights that one element of a mask stands for: 32, 16 or 1.
std::int64_t mask_block(SparsityPattern pattern);

// The mask of a weight, a matrix or a stack of them.
TensorType mask_type(SparsityPattern pattern, const TensorType& weight);

// The attribute of ops that read a mask, which says its pattern. None without it; InvalidArgument
// for another word.
inline constexpr std::string_view kMaskAttribute = "mask";
std::optional<SparsityPattern> mask_of(const Attributes& attributes);
// The attribute of such ops that says how many of its elements a mask keeps of each matrix. 0
// without it, where nothing is known.
inline constexpr std::string_view kKeptAttribute = "kept";
std::int64_t kept_of(const Attributes& attributes);
// The share of a weight's blocks that this is; 1 without the attribute.
double density_of(const Attributes& attributes, const TensorType& weight);

// Elements of the mask of one matrix [rows, columns].
std::int64_t num_blocks(SparsityPattern pattern, std::int64_t rows, std::int64_t columns);

// How many of them are present at a density in (0, 1]: max(1, round(density · blocks)). In 2:4
// whole groups of four lose two weights each, so it is the nearest number that they can give.
std::int64_t kept_blocks(SparsityPattern pattern, std::int64_t rows, std::int64_t columns,
                         double density);

// The density in steps of training (Zhu and Gupta, "To prune, or not to prune", 2017). The mask
// changes before steps begin, begin + every, ... and end; in between it stays.
struct SparsitySchedule {
  std::int64_t begin = 1, end = 1, every = 1;

  // Whether the mask of this step is chosen anew.
  bool is_due(std::int64_t step) const;
  // After the update of a step: with the share d of a step at which a mask was chosen, which is
  // density + (1 - density) · (1 - (step - begin) / (end - begin))^3, and 1 before begin.
  double density_after(std::int64_t step, double density) const;
  bool operator==(const SparsitySchedule&) const = default;
};

// Weights that become sparse. `units` are those of ProductOptions::keep.
struct SparseUnits {
  std::vector<std::string> units{};
  SparsityPattern pattern = SparsityPattern::kBlock32;
  double density = 1;
  SparsitySchedule schedule{};
  // The share of zeroes from which a product takes the sparse kernel; none: where that is predicted
  // to be faster.
  std::optional<double> threshold{};
  bool is_transposable = false;  // 2:4 along the output too

  bool operator==(const SparseUnits&) const = default;
};

struct SparsityOptions {
  std::vector<SparseUnits> entries{};  // none: off
  // Masks have the density at which they stay, so products may have sparse operands.
  bool is_final = false;

  bool operator==(const SparsityOptions&) const = default;
};

}  // namespace anabatic::spec
