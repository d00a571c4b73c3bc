// SPDX-License-Identifier: Apache-2.0
// States in row-major order, whatever their layout in memory (tensor/panels.h). Everything outside
// a step reads them like this. Files are read and written a few elements at a time, so that there
// is never a second copy of a state.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/name.h"
#include "tensor/tensor_type.h"

namespace anabatic::runtime {
class StateStore;
}

namespace anabatic::train {

// A state, or the two states with the upper and lower 16 bits of a parameter
// (passes/split_parameters.h), which is f32 to readers of rows.
struct StateRows {
  TensorView state, low{};

  StateRows(TensorView the_state, TensorView its_low = {}) : state(the_state), low(its_low) {}
  bool is_split() const { return low.data != nullptr; }
  // Dtype of an element in row-major order.
  DType dtype() const { return is_split() ? DType::kFloat32 : state.type->dtype; }
};
// InternalError if not all of it is in memory (train/state_tiers.h).
StateRows find_rows(const runtime::StateStore& store, Name state);

// States with the lower 16 bits of a parameter: none, one, or slices in the order of its rows.
std::span<const Name> low_states(const runtime::StateStore& store, Name parameter);
// Whether this rank holds a part of the parameter, and others the rest.
bool is_shared(const runtime::StateStore& store, Name parameter);
// Whether the state, and the lower 16 bits of a split parameter, are in memory and not sliced.
bool is_in_memory_whole(const runtime::StateStore& store, Name state);

// Elements [first, first + values.size()) of an f32 state; bf16 is widened when it is read, and
// rounded half away from zero when it is written. InternalError for another dtype or a range beyond
// the state.
void read_rows(const StateRows& rows, std::int64_t first, std::span<float> values);
void write_rows(const StateRows& rows, std::int64_t first, std::span<const float> values);

// Writes the upper 16 bits of f32 values, which are all that the state holds.
void write_upper_rows(const TensorView& upper, std::int64_t first, std::span<const float> values);

// The same with the elements' own bytes, of any dtype.
void read_row_bytes(const StateRows& rows, std::int64_t first, std::span<std::byte> bytes);
void write_row_bytes(const StateRows& rows, std::int64_t first, std::span<const std::byte> bytes);

// Calls body(first, block) for each of `count` elements once, in ascending blocks of a scratch
// buffer, whose contents are undefined.
void for_row_blocks(std::int64_t count,
                    const std::function<void(std::int64_t, std::span<float>)>& body);

// The bytes of a state in row-major order, a block at a time.
void for_row_bytes(const StateRows& rows,
                   const std::function<void(std::span<const std::byte>)>& body);

}  // namespace anabatic::train
