// SPDX-License-Identifier: Apache-2.0
// Reads and writes elements of any supported dtype as double or integer, which keeps ref kernels
// simple.
#pragma once
#include "base/error.h"
#include "base/rounding.h"
#include "kernels/kernel.h"
#include "tensor/float4.h"
#include "tensor/half.h"
#include "tensor/panels.h"

namespace anabatic::kernels::ref {

// Element `i` of an array of `dtype`.
inline double load_from(DType dtype, const std::byte* data, std::int64_t i) {
  const auto at = [&]<class T>(const T* array) { return array[i]; };
  switch (dtype) {
    case DType::kFloat64:
      return at(reinterpret_cast<const double*>(data));
    case DType::kFloat32:
      return at(reinterpret_cast<const float*>(data));
    case DType::kBFloat16:
      return to_float(at(reinterpret_cast<const BFloat16*>(data)));
    case DType::kFloat16:
      return to_float(at(reinterpret_cast<const Float16*>(data)));
    case DType::kInt32:
      return at(reinterpret_cast<const std::int32_t*>(data));
    case DType::kUInt16:
      return at(reinterpret_cast<const std::uint16_t*>(data));
    case DType::kUInt8:
      return at(reinterpret_cast<const std::uint8_t*>(data));
    case DType::kInt8:
      return at(reinterpret_cast<const std::int8_t*>(data));
    default:
      throw InternalError("[ref] a dtype that supports() refuses");
  }
}

inline void store_to(DType dtype, std::byte* data, std::int64_t i, double value) {
  const auto put_at = [&]<class T>(T* array, T rounded) { array[i] = rounded; };
  switch (dtype) {
    case DType::kFloat64:
      return put_at(reinterpret_cast<double*>(data), value);
    case DType::kFloat32:
      return put_at(reinterpret_cast<float*>(data), static_cast<float>(value));
    case DType::kBFloat16:
      return put_at(reinterpret_cast<BFloat16*>(data), to_bfloat16(static_cast<float>(value)));
    case DType::kFloat16:
      return put_at(reinterpret_cast<Float16*>(data), to_float16(static_cast<float>(value)));
    case DType::kInt32:
      return put_at(reinterpret_cast<std::int32_t*>(data), static_cast<std::int32_t>(value));
    case DType::kUInt16:
      return put_at(reinterpret_cast<std::uint16_t*>(data), static_cast<std::uint16_t>(value));
    case DType::kUInt8:
      return put_at(reinterpret_cast<std::uint8_t*>(data), static_cast<std::uint8_t>(value));
    case DType::kInt8:
      return put_at(reinterpret_cast<std::int8_t*>(data), static_cast<std::int8_t>(value));
    default:
      throw InternalError("[ref] a dtype that supports() refuses");
  }
}

// The i-th element in row-major order, whatever the layout; of a quantised tensor as it is stored,
// without its scale.
inline double load(const TensorView& view, std::int64_t i) {
  if (is_mxfp4(*view.type)) return float4_at(view.as<const std::uint8_t>(), i);
  return load_from(view.type->dtype, view.data, element_offset(*view.type, i));
}
inline void store(const TensorView& view, std::int64_t i, double value) {
  store_to(view.type->dtype, view.data, element_offset(*view.type, i), value);
}

// The i-th scale of a quantised tensor, in row-major order of blocks.
inline double load_scale(const TensorView& view, std::int64_t i) {
  return load_from(view.type->blocks->scale, view.scales<const std::byte>(), i);
}
inline void store_scale(const TensorView& view, std::int64_t i, double value) {
  store_to(view.type->blocks->scale, view.scales<std::byte>(), i, value);
}
// The scale of the i-th element.
inline std::int64_t block_of(const TensorType& type, std::int64_t i) {
  const BlockFormat& blocks = *type.blocks;
  const std::int64_t width = type.dim(-1), rows = type.dim(-2), row = i / width;
  const std::int64_t blocks_down = ceil_div(rows, blocks.rows);
  return (row / rows * blocks_down + row % rows / blocks.rows) * scale_columns(type) +
         i % width / blocks.columns;
}

// The value rounded to `dtype`, to nearest even; to 16 bits by way of f32.
inline double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<float>(value);
    case DType::kBFloat16:
      return to_float(to_bfloat16(static_cast<float>(value)));
    case DType::kFloat16:
      return to_float(to_float16(static_cast<float>(value)));
    default:
      return value;
  }
}

// The i-th element, which a quantised tensor has as `dequantize` to `dtype` gives it.
inline double load_as(DType dtype, const TensorView& view, std::int64_t i) {
  const double value = load(view, i);
  if (!view.type->is_quantized()) return value;
  const double scale = load_scale(view, block_of(*view.type, i));
  if (is_mxfp4(*view.type))
    return float4_value(static_cast<unsigned>(value), static_cast<std::uint8_t>(scale));
  return round_to(dtype, value * scale);
}
// That of a product's weight, quantised or not.
inline double load_weight(const TensorView& weight, std::int64_t i) {
  return load_as(weight.type->value_dtype(), weight, i);
}

inline std::int64_t load_index(const TensorView& view, std::int64_t i) {
  return view.as<const std::int32_t>()[i];
}
inline void store_index(const TensorView& view, std::int64_t i, std::int64_t value) {
  view.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
}

inline bool adds(const Arguments& args, std::size_t output) {
  return output < args.accumulate.size() && args.accumulate[output];
}

// `=` or `+=`, as the call asks for.
inline void put(const Arguments& args, std::size_t output, std::int64_t i, double value) {
  const TensorView& view = args.outputs[output];
  store(view, i, adds(args, output) ? load(view, i) + value : value);
}

// Row `row` of a matrix, whole.
inline void store_row(const TensorView& view, std::int64_t row, const std::vector<double>& values) {
  const auto width = static_cast<std::int64_t>(values.size());
  for (std::int64_t n = 0; n < width; ++n)
    store(view, row * width + n, values[static_cast<std::size_t>(n)]);
}

inline std::int64_t rows(const TensorView& view) { return view.type->dim(0); }
inline std::int64_t columns(const TensorView& view) { return view.type->dim(-1); }
inline std::int64_t size(const TensorView& view) { return view.type->num_elements(); }

// y = rms_norm of x's runs of the weight's size; y may be x. In norm.cpp.
void normalise(const TensorView& x, const TensorView& weight, double epsilon, const TensorView& y);

// Quantises the elements x of row `row` of y. In quantize.cpp.
void quantize_row(const double* x, std::int64_t row, const TensorView& y);
// `pack` to panels of int8 products, whose bytes are 0 before. Likewise.
void pack_in_int8(const Arguments& args);

// A label that does not count.
inline constexpr std::int64_t kIgnoredLabel = -100;
// The label of row t, of so many classes; InvalidArgument for others.
std::int64_t checked_label(const TensorView& labels, std::int64_t t, std::int64_t num_classes);
// What the losses of the rows of a head are multiplied by in the backward.
double head_seed(const Arguments& args);

// log Σ exp of `count` elements from `begin`; -inf for none.
double log_sum_exp(const TensorView& view, std::int64_t begin, std::int64_t count);

}  // namespace anabatic::kernels::ref
