// SPDX-License-Identifier: Apache-2.0
// States as everything outside a step sees them: elements in row-major order, whatever the layout
// is in memory (tensor/panels.h). Files are read and written a few elements at a time, so that no
// second copy of a state stands.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "tensor/tensor_type.h"

namespace anabatic::train {

// Elements [first, first + values.size()) of an f32 state. InternalError for another dtype or a
// range beyond the state.
void read_rows(const TensorView& state, std::int64_t first, std::span<float> values);
void write_rows(const TensorView& state, std::int64_t first, std::span<const float> values);

// The same with the elements' own bytes, of any dtype.
void read_row_bytes(const TensorView& state, std::int64_t first, std::span<std::byte> bytes);
void write_row_bytes(const TensorView& state, std::int64_t first, std::span<const std::byte> bytes);

// Calls body(first, block) for every element once, in ascending blocks of a scratch buffer, whose
// contents are undefined.
void for_row_blocks(const TensorView& state,
                    const std::function<void(std::int64_t, std::span<float>)>& body);

// The bytes of a state in row-major order, a block at a time.
void for_row_bytes(const TensorView& state,
                   const std::function<void(std::span<const std::byte>)>& body);

}  // namespace anabatic::train
