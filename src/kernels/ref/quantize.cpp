// SPDX-License-Identifier: Apache-2.0
// int8 values are defined by arithmetic in f32, whatever the dtype of x: any row gives the same
// ones.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ref/access.h"
#include "kernels/ref/int8_products.h"
#include "kernels/ref/rows.h"
#include "tensor/largest_int8.h"

namespace anabatic::kernels::ref {
namespace {

constexpr float kSmallest = 0x1p-100f;  // a block whose largest element is below is all zeroes

}  // namespace

void quantize_row(const double* x, std::int64_t row, const TensorView& y) {
  const std::int64_t width = columns(y), block = y.type->blocks->columns,
                     scales = scale_columns(*y.type);
  for (std::int64_t b = 0; b < scales; ++b) {
    const std::int64_t first = b * block, end = first + std::min(block, width - first);
    float largest = 0;
    bool is_finite = true;
    for (std::int64_t i = first; i < end; ++i) {
      const auto value = static_cast<float>(x[i]);
      is_finite &= std::isfinite(value);
      largest = std::max(largest, std::abs(value));
    }
    const float scale = !is_finite            ? std::numeric_limits<float>::quiet_NaN()
                        : largest < kSmallest ? 0.0f
                                              : to_float(to_bfloat16_up(largest / kLargestInt8));
    store_scale(y, row * scales + b, scale);
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (std::int64_t i = first; i < end; ++i)
      store(y, row * width + i,
            is_finite ? std::nearbyint(static_cast<float>(x[i]) * inverse) : 0.0);
  }
}

std::int64_t quantize_workspace_bytes(const spec::Problem& problem) {
  return problem.inputs[0].dim(1) * std::int64_t{sizeof(double)};
}

void quantize(const Arguments& args) {
  const TensorView& x = args.inputs[0];
  const std::int64_t width = columns(x);
  auto* row = reinterpret_cast<double*>(args.workspace);
  for (std::int64_t r = 0; r < rows(x); ++r) {
    for (std::int64_t i = 0; i < width; ++i) row[i] = load(x, r * width + i);
    quantize_row(row, r, args.outputs[0]);
  }
}

void dequantize(const Arguments& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  for (std::int64_t i = 0; i < size(y); ++i)
    store(y, i, load(x, i) * load_scale(x, block_of(*x.type, i)));
}

// To panels of int8 products: a scale and values for each tile, unless x has both; then what the
// lines of panels add up to.
void pack_in_int8(const Arguments& args) {
  const TensorView &x = args.inputs[0], &y = args.outputs[0];
  const std::int64_t rows = y.type->dim(-2), width = columns(y);
  const bool transposed = y.type->layout == panels_layout(true);
  const PanelShape shape = panel_shape(*y.type);
  const std::int64_t depth_blocks = ceil_div(shape.depth, kInt8Tile);
  const bool is_coded = x.type->is_quantized();
  for (std::int64_t m = 0; m < size(y) / std::max<std::int64_t>(rows * width, 1); ++m) {
    const std::int64_t base = m * rows * width;
    std::vector<float> values;
    for (std::int64_t i = 0; i < rows * width; ++i)
      values.push_back(static_cast<float>(load(x, base + i)));
    const CodedLines tiles = is_coded ? CodedLines{} : code_tiles(values, rows, width);
    for (std::int64_t i = 0; i < rows * width; ++i) {
      const std::int64_t row = i / width, column = i % width;
      const auto at = static_cast<std::size_t>(i);
      const std::int64_t code =
          is_coded ? static_cast<std::int64_t>(values[at]) : std::int64_t{tiles.codes[at]};
      store(y, base + i, static_cast<double>(code));
      const std::int64_t block = block_of(*y.type, base + i);
      store_scale(
          y, block,
          is_coded
              ? load_scale(x, block)
              : tiles.scales[static_cast<std::size_t>(row * tiles.blocks() + column / kInt8Tile)]);
      const std::int64_t line = transposed ? column : row, k = transposed ? row : column;
      const std::int64_t panel = m * shape.num_panels() + line / kPanelColumns;
      y.compensations()[(panel * depth_blocks + k / kInt8Tile) * kPanelColumns +
                        line % kPanelColumns] -= static_cast<std::int32_t>(128 * code);
    }
  }
}

}  // namespace anabatic::kernels::ref
