// SPDX-License-Identifier: Apache-2.0
// Fills states in int8 or MXFP4, with a scale for each block of a row, from f32 values. These come
// in parts of rows, as files hold them, so there is never a whole state in f32.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "tensor/tensor_type.h"

namespace anabatic::train {

// The elements of a block and its scale, with the bits of the op `quantize`.
BFloat16 quantize_block(std::span<const float> values, std::int8_t* elements);

// Whole blocks of MXFP4 as Hugging Face's files hold them (io/block_types.h), from element `first`
// on.
void copy_mxfp4(const TensorView& state, std::int64_t first, std::span<const std::byte> pairs,
                std::span<const std::byte> scales);

class QuantizedRows {
 public:
  // Elements from `first` on; those of a row ascend. Threads may write different rows.
  // InvalidArgument for values that are not finite where MXFP4 has no place for them.
  void write(const TensorView& state, std::int64_t first, std::span<const float> values);
  // InternalError where a row has begun and has not ended.
  void require_complete() const;

 private:
  std::mutex mutex_;
  // Rows that have begun, by state and row.
  std::map<std::pair<const std::byte*, std::int64_t>, std::vector<float>> begun_;
};

}  // namespace anabatic::train
