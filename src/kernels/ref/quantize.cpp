// SPDX-License-Identifier: Apache-2.0
// Codes are defined by arithmetic in f32, whatever the dtype of x: any row gives the same ones.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {
namespace {

constexpr float kSmallest = 0x1p-100f;  // a block whose largest element is below is all zeroes

}  // namespace

void quantize(const Arguments& args) {
  const TensorView &x = args.inputs[0], &codes = args.outputs[0], &scales = args.outputs[1];
  const std::int64_t block = spec::get_int(*args.attributes, "block"), width = columns(x),
                     blocks = columns(scales);
  for (std::int64_t b = 0; b < size(scales); ++b) {
    const std::int64_t row = b / blocks, first = b % blocks * block,
                       end = row * width + std::min(first + block, width);
    float largest = 0;
    bool is_finite = true;
    for (std::int64_t i = row * width + first; i < end; ++i) {
      const auto value = static_cast<float>(load(x, i));
      is_finite &= std::isfinite(value);
      largest = std::max(largest, std::abs(value));
    }
    const float scale = !is_finite            ? std::numeric_limits<float>::quiet_NaN()
                        : largest < kSmallest ? 0.0f
                                              : to_float(to_bfloat16_up(largest / 127.0f));
    store(scales, b, scale);
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (std::int64_t i = row * width + first; i < end; ++i)
      store(codes, i, is_finite ? std::nearbyint(static_cast<float>(load(x, i)) * inverse) : 0.0);
  }
}

void dequantize(const Arguments& args) {
  const TensorView &codes = args.inputs[0], &scales = args.inputs[1], &x = args.outputs[0];
  const std::int64_t block = spec::get_int(*args.attributes, "block"), width = columns(x),
                     blocks = columns(scales);
  for (std::int64_t i = 0; i < size(x); ++i) {
    const double scale = load(scales, i / width * blocks + i % width / block);
    store(x, i, load(codes, i) * scale);
  }
}

}  // namespace anabatic::kernels::ref
