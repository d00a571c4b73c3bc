// SPDX-License-Identifier: Apache-2.0
// Reads and writes elements of any supported dtype as double or integer, which keeps ref kernels
// simple.
#pragma once
#include "base/error.h"
#include "kernels/kernel.h"
#include "tensor/panels.h"

namespace anabatic::kernels::ref {

// The i-th element in row-major order, whatever the layout.
inline double load(const TensorView& view, std::int64_t i) {
  i = element_offset(*view.type, i);
  switch (view.type->dtype) {
    case DType::kFloat64:
      return view.as<const double>()[i];
    case DType::kFloat32:
      return view.as<const float>()[i];
    case DType::kBFloat16:
      return to_float(view.as<const BFloat16>()[i]);
    case DType::kInt32:
      return view.as<const std::int32_t>()[i];
    case DType::kUInt16:
      return view.as<const std::uint16_t>()[i];
    case DType::kUInt8:
      return view.as<const std::uint8_t>()[i];
    case DType::kInt8:
      return view.as<const std::int8_t>()[i];
    default:
      throw InternalError("[ref] a dtype that supports() refuses");
  }
}

// The value rounded to `dtype`, to nearest even; to bf16 by way of f32.
inline double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<float>(value);
    case DType::kBFloat16:
      return to_float(to_bfloat16(static_cast<float>(value)));
    default:
      return value;
  }
}

inline void store(const TensorView& view, std::int64_t i, double value) {
  i = element_offset(*view.type, i);
  switch (view.type->dtype) {
    case DType::kFloat64:
      view.as<double>()[i] = value;
      return;
    case DType::kFloat32:
      view.as<float>()[i] = static_cast<float>(value);
      return;
    case DType::kBFloat16:
      view.as<BFloat16>()[i] = to_bfloat16(static_cast<float>(value));
      return;
    case DType::kInt32:
      view.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
      return;
    case DType::kUInt16:
      view.as<std::uint16_t>()[i] = static_cast<std::uint16_t>(value);
      return;
    case DType::kUInt8:
      view.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(value);
      return;
    case DType::kInt8:
      view.as<std::int8_t>()[i] = static_cast<std::int8_t>(value);
      return;
    default:
      throw InternalError("[ref] a dtype that supports() refuses");
  }
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

inline std::int64_t rows(const TensorView& view) { return view.type->dim(0); }
inline std::int64_t columns(const TensorView& view) { return view.type->dim(-1); }
inline std::int64_t size(const TensorView& view) { return view.type->num_elements(); }

// y = rms_norm of x's runs of the weight's size; y may be x. In norm.cpp.
void normalise(const TensorView& x, const TensorView& weight, double epsilon, const TensorView& y);

// Quantises row `row`, whose elements are x, with a scale for each `block`. In quantize.cpp.
void quantize_row(const double* x, std::int64_t width, std::int64_t block, std::int64_t row,
                  const TensorView& codes, const TensorView& scales);

// log Σ exp of `count` elements from `begin`; -inf for none.
double log_sum_exp(const TensorView& view, std::int64_t begin, std::int64_t count);

}  // namespace anabatic::kernels::ref
