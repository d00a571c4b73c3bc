// SPDX-License-Identifier: Apache-2.0
// The type of a tensor: element type or block format, shape, layout. And a view of a
// tensor, which never owns memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/name.h"
#include "tensor/block_format.h"
#include "tensor/dtype.h"

namespace anabatic {

// Name{} (the empty text) is row-major: the last dimension is contiguous. A packed layout has a
// name, such as those of tensor/panels.h.
using Layout = Name;
inline constexpr Layout kRowMajor{};

// A quantised tensor is one value: its elements in the layout, then, from a multiple of
// kScalesAlignment bytes on, the scales of all blocks, row-major. Panels of int8 tiles have
// compensations after them, from such a multiple on.
struct TensorType {
  DType dtype = DType::kFloat32;      // of the elements
  std::vector<std::int64_t> shape{};  // [] is a scalar
  Layout layout = kRowMajor;
  std::optional<BlockFormat> blocks{};  // of a quantised matrix or stack of matrices

  std::int64_t ndim() const { return static_cast<std::int64_t>(shape.size()); }
  // A negative axis counts from the end; InternalError if out of range.
  std::int64_t dim(std::int64_t axis) const;
  std::int64_t num_elements() const;  // InvalidArgument on overflow of 2^62
  std::int64_t num_bytes() const;     // likewise; of a quantised tensor with its scales
  bool is_quantized() const { return blocks.has_value(); }
  // The dtype of the values: of a quantised tensor that of its scales, or bf16 where these are
  // E8M0.
  DType value_dtype() const {
    if (!is_quantized()) return dtype;
    return blocks->scale == DType::kUInt8 ? DType::kBFloat16 : blocks->scale;
  }
  bool operator==(const TensorType&) const = default;
};

TensorType tensor_type(DType dtype, std::vector<std::int64_t> shape);

// The type quantised; `type` is a matrix or a stack of matrices, and in MXFP4 its rows are whole
// blocks, else InvalidArgument.
TensorType quantized(TensorType type, const BlockFormat& format);

inline bool is_mxfp4(const TensorType& type) { return type.blocks == mxfp4_format(); }

// The parts of a quantised type. Scales are [N,K] or [E,N,K] with N and K counted in blocks.
// Elements that share a unit of their dtype are counted as one.
inline constexpr std::int64_t kScalesAlignment = 64;
TensorType elements_type(TensorType type);
TensorType scales_type(const TensorType& type);
// Bytes of the elements, with the padding of a packed layout.
std::int64_t element_bytes(const TensorType& type);
std::int64_t scales_offset(const TensorType& type);  // bytes from the first element on
// Scales of one row of blocks.
std::int64_t scale_columns(const TensorType& type);

// Panels of int8_tile_format: the weight of an int8 product. Its compensations are i32 [matrix]
// [panel][block of the depth][16]: -128 times the sum of a line's elements in that block.
bool is_int8_panels(const TensorType& type);
std::int64_t compensations_offset(const TensorType& type);  // bytes from the first element on

// "bf16[4096,512]@panels", "f32[]", "f32[8,512]", "i8_bf16_1x128[4096,512]".
std::string to_string(const TensorType& type);
// The inverse; InvalidArgument naming the text when it is not such a type.
TensorType parse_tensor_type(std::string_view text);

struct TensorView {
  std::byte* data = nullptr;
  const TensorType* type = nullptr;

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  // Those of a quantised tensor.
  template <class T>
  T* scales() const {
    return reinterpret_cast<T*>(data + scales_offset(*type));
  }
  // Those of int8 panels.
  std::int32_t* compensations() const {
    return reinterpret_cast<std::int32_t*>(data + compensations_offset(*type));
  }
};

}  // namespace anabatic
