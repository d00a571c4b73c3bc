// SPDX-License-Identifier: Apache-2.0
#include "train/sparsity/choose_mask.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/error.h"

namespace anabatic::train {
namespace {

using spec::SparsityPattern;

constexpr std::int64_t kSide = 4;  // of groups and tiles of 2:4

double magnitude(float value) {
  return std::isnan(value) ? std::numeric_limits<double>::infinity() : std::abs(value);
}

// Marks the `count` largest scores; of equal ones those with the lower index.
template <class Score>
void mark_largest(const std::vector<Score>& scores, std::int64_t count,
                  std::vector<std::uint8_t>& marks) {
  marks.assign(scores.size(), 0);
  if (count <= 0) return;
  if (count >= std::ssize(scores)) {
    std::ranges::fill(marks, std::uint8_t{1});
    return;
  }
  std::vector<Score> sorted = scores;
  const auto last = sorted.begin() + (count - 1);
  std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
  const Score least = *last;
  std::int64_t ties = count - std::ranges::count_if(scores, [&](Score s) { return s > least; });
  for (std::size_t i = 0; i < scores.size(); ++i)
    marks[i] = scores[i] > least || (scores[i] == least && ties-- > 0) ? 1 : 0;
}

void choose_blocks(std::span<const float> matrix, std::int64_t rows, std::int64_t columns,
                   std::int64_t side, std::int64_t kept, std::span<std::uint8_t> mask) {
  const std::int64_t across = (columns + side - 1) / side;
  std::vector<double> squares(mask.size(), 0.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* const line = matrix.data() + row * columns;
    double* const of_row = squares.data() + row / side * across;
    for (std::int64_t column = 0; column < columns; ++column) {
      const double value = magnitude(line[column]);
      of_row[column / side] += value * value;
    }
  }
  std::vector<std::uint8_t> marks;
  mark_largest(squares, kept, marks);
  std::ranges::copy(marks, mask.begin());
}

void choose_elements(std::span<const float> matrix, std::int64_t kept,
                     std::span<std::uint8_t> mask) {
  std::vector<float> magnitudes(matrix.size());
  std::ranges::transform(matrix, magnitudes.begin(),
                         [](float value) { return static_cast<float>(magnitude(value)); });
  std::vector<std::uint8_t> marks;
  mark_largest(magnitudes, kept, marks);
  std::ranges::copy(marks, mask.begin());
}

// The bits of the two largest of four.
std::uint32_t best_two(const float* group) {
  std::uint32_t bits = 0;
  for (int round = 0; round < 2; ++round) {
    int best = -1;
    for (int i = 0; i < kSide; ++i)
      if ((bits >> i & 1) == 0 && (best < 0 || magnitude(group[i]) > magnitude(group[best])))
        best = i;
    bits |= 1u << best;
  }
  return bits;
}

// The tile of those with the largest sum of magnitudes; of equal ones the first.
std::uint32_t best_tile(const std::array<double, kSide * kSide>& magnitudes) {
  double best_sum = -1;
  std::uint32_t best = 0;
  for (const std::uint16_t tile : two_of_four_tiles()) {
    double sum = 0;
    for (std::uint32_t bits = tile; bits != 0; bits &= bits - 1)
      sum += magnitudes[static_cast<std::size_t>(std::countr_zero(bits))];
    if (!(sum > best_sum)) continue;
    best_sum = sum;
    best = tile;
  }
  return best;
}

// Parts of a matrix, groups in a row or square tiles, of which each keeps some elements.
class Parts {
 public:
  Parts(std::span<const float> matrix, std::int64_t rows, std::int64_t columns, std::int64_t height)
      : matrix_(matrix), columns_(columns), height_(height), across_(columns / kSide) {
    const std::int64_t count = rows / height * across_;
    bits_.reserve(static_cast<std::size_t>(count));
    losses_.reserve(static_cast<std::size_t>(count));
    for (std::int64_t part = 0; part < count; ++part) choose(part);
  }

  // So many parts become sparse: those that lose least. The others stay whole.
  void fill(std::int64_t num_sparse, std::span<std::uint8_t> mask) const {
    std::vector<double> gains(losses_.size());
    std::ranges::transform(losses_, gains.begin(), std::negate<>());
    std::vector<std::uint8_t> is_sparse;
    mark_largest(gains, num_sparse, is_sparse);
    for (std::size_t part = 0; part < bits_.size(); ++part)
      for (std::int64_t i = 0; i < height_ * kSide; ++i)
        mask[static_cast<std::size_t>(place(static_cast<std::int64_t>(part), i))] =
            is_sparse[part] == 0 || (bits_[part] >> i & 1) != 0 ? 1 : 0;
  }

 private:
  std::int64_t place(std::int64_t part, std::int64_t i) const {
    return (part / across_ * height_ + i / kSide) * columns_ + part % across_ * kSide + i % kSide;
  }

  void choose(std::int64_t part) {
    std::array<double, kSide * kSide> magnitudes{};
    for (std::int64_t i = 0; i < height_ * kSide; ++i)
      magnitudes[static_cast<std::size_t>(i)] =
          magnitude(matrix_[static_cast<std::size_t>(place(part, i))]);
    const std::uint32_t bits = height_ == 1
                                   ? best_two(&matrix_[static_cast<std::size_t>(place(part, 0))])
                                   : best_tile(magnitudes);
    double loss = 0;
    for (std::int64_t i = 0; i < height_ * kSide; ++i)
      if ((bits >> i & 1) == 0) loss += magnitudes[static_cast<std::size_t>(i)];
    bits_.push_back(static_cast<std::uint16_t>(bits));
    losses_.push_back(loss);
  }

  std::span<const float> matrix_;
  std::int64_t columns_, height_, across_;
  std::vector<std::uint16_t> bits_;
  std::vector<double> losses_;  // sums of the magnitudes that go
};

}  // namespace

const std::array<std::uint16_t, kNumTwoOfFourTiles>& two_of_four_tiles() {
  static const std::array<std::uint16_t, kNumTwoOfFourTiles> tiles = [] {
    std::array<std::uint16_t, kNumTwoOfFourTiles> found{};
    std::size_t count = 0;
    for (std::uint32_t bits = 0; bits < 1u << (kSide * kSide); ++bits) {
      bool is_valid = true;
      for (int line = 0; line < kSide; ++line)
        is_valid &= std::popcount(bits >> (kSide * line) & 0xFu) == 2 &&
                    std::popcount(bits >> line & 0x1111u) == 2;
      if (is_valid) found.at(count++) = static_cast<std::uint16_t>(bits);
    }
    return found;
  }();
  return tiles;
}

void choose_mask(const MaskForm& form, std::span<const float> matrix, std::int64_t rows,
                 std::int64_t columns, std::int64_t kept, std::span<std::uint8_t> mask) {
  ANABATIC_CHECK(std::ssize(matrix) == rows * columns &&
                     std::ssize(mask) == spec::num_blocks(form.pattern, rows, columns),
                 "[choose mask] {} weights and {} elements of a mask of {} x {}", matrix.size(),
                 mask.size(), rows, columns);
  switch (form.pattern) {
    case SparsityPattern::kBlock32:
    case SparsityPattern::kBlock16:
      return choose_blocks(matrix, rows, columns, spec::mask_block(form.pattern), kept, mask);
    case SparsityPattern::kUnstructured:
      return choose_elements(matrix, kept, mask);
    case SparsityPattern::kTwoOfFour:
      break;
  }
  const std::int64_t height = form.is_transposable ? kSide : 1;
  // A part that becomes sparse loses half of its elements.
  Parts(matrix, rows, columns, height).fill((rows * columns - kept) / (height * kSide / 2), mask);
}

}  // namespace anabatic::train
