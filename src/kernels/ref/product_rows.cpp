// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/product_rows.h"

#include "spec/product.h"

namespace anabatic::kernels::ref {
namespace {

// Rows of this thread that no product uses. The next one takes the last, with its room.
std::vector<std::vector<double>>& spare_rows() {
  thread_local std::vector<std::vector<double>> rows;
  return rows;
}

}  // namespace

ProductRows::ProductRows(const Arguments& args, const TensorView& weight, bool of_gradient)
    : weight_(weight),
      of_gradient_(of_gradient),
      is_int8_(is_int8_panels(*weight.type) || args.attributes->contains(spec::kPackedFormat)),
      is_packed_here_(!is_int8_panels(*weight.type)),
      fallback_(of_gradient ? kWithoutFallback : fallback_of(args).value_or(kWithoutFallback)),
      counts_(args.counts),
      width_(weight.type->dim(of_gradient ? -1 : -2)),
      depth_(weight.type->dim(of_gradient ? -2 : -1)) {
  auto& spare = spare_rows();
  if (spare.empty()) return;
  sums_ = std::move(spare.back());
  spare.pop_back();
}

ProductRows::~ProductRows() {
  if (sums_.capacity() > 0) spare_rows().push_back(std::move(sums_));
}

void ProductRows::add(const TensorView& x, std::int64_t row, std::int64_t group,
                      std::vector<double>& sums) {
  if (group != group_) take_matrix(group);
  if (is_int8_) {
    std::vector<float> line, chain(sums.begin(), sums.end());
    for (std::int64_t k = 0; k < depth_; ++k)
      line.push_back(static_cast<float>(load(x, row * depth_ + k)));
    const CodedLines coded = code_lines(line, 1, depth_, fallback_);
    if (counts_ != nullptr) counts_->add(counts_of(coded, line));
    add_int8_product(coded, tiles_, chain);
    sums.assign(chain.begin(), chain.end());
    return;
  }
  for (std::int64_t n = 0; n < width_; ++n)
    for (std::int64_t k = 0; k < depth_; ++k)
      sums[static_cast<std::size_t>(n)] +=
          load(x, row * depth_ + k) * load_weight(weight_, place(n, k));
}

std::vector<double>& ProductRows::times(const TensorView& x, std::int64_t row, std::int64_t group,
                                        const TensorView* bias) {
  sums_.assign(static_cast<std::size_t>(width_), 0);
  add(x, row, group, sums_);
  for (std::int64_t n = 0; bias != nullptr && n < width_; ++n) {
    double& sum = sums_[static_cast<std::size_t>(n)];
    sum += load(*bias, group * width_ + n);
    if (is_int8_) sum = static_cast<float>(sum);  // an int8 product is f32 arithmetic
  }
  return sums_;
}

void ProductRows::take_matrix(std::int64_t group) {
  group_ = group;
  base_ = group * width_ * depth_;
  if (!is_int8_) return;
  if (is_packed_here_) {
    const std::int64_t rows = of_gradient_ ? depth_ : width_, columns = width_ * depth_ / rows;
    std::vector<float> matrix;
    for (std::int64_t i = 0; i < rows * columns; ++i)
      matrix.push_back(static_cast<float>(load(weight_, base_ + i)));
    tiles_ = code_tiles(matrix, rows, columns);
    if (of_gradient_) tiles_ = transposed_tiles(tiles_);
    return;
  }
  tiles_ = {};
  tiles_.lines = width_;
  tiles_.depth = depth_;
  for (std::int64_t n = 0; n < width_; ++n)
    for (std::int64_t k = 0; k < depth_; ++k) {
      tiles_.codes.push_back(static_cast<std::int16_t>(load(weight_, place(n, k))));
      if (k % kInt8Tile == 0)
        tiles_.scales.push_back(
            static_cast<float>(load_scale(weight_, block_of(*weight_.type, place(n, k)))));
    }
  tiles_.falls_back.resize(tiles_.scales.size());
}

}  // namespace anabatic::kernels::ref
