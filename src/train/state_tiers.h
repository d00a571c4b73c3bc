// SPDX-License-Identifier: Apache-2.0
// States of a store in row-major order wherever they stand, in memory or on disk: a part at a time,
// so that no second copy stands and a state on disk never stands in memory whole.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/name.h"
#include "runtime/state_store.h"

namespace anabatic::train {

// The bytes of a state in row-major order, a block at a time. ResourceError when the disk gives
// back other bytes than were written.
void for_state_bytes(runtime::StateStore& store, Name state,
                     const std::function<void(std::span<const std::byte>)>& body);

// Fills a state: source(first, block) gives the elements from `first` on, for every element once,
// in ascending order.
void fill_state(runtime::StateStore& store, Name state,
                const std::function<void(std::int64_t first, std::span<std::byte>)>& source);

// A state as a checkpoint names it: one of the store, or slices that follow one another
// (passes/slice_optimizer.h).
struct SavedState {
  Name name{};
  TensorType type{};           // of the whole, with the dtype of its elements in files
  std::vector<Name> slices{};  // empty: the state of that name
};

// As above.
void for_state_bytes(runtime::StateStore& store, const SavedState& state,
                     const std::function<void(std::span<const std::byte>)>& body);
void fill_state(runtime::StateStore& store, const SavedState& state,
                const std::function<void(std::int64_t first, std::span<std::byte>)>& source);

}  // namespace anabatic::train
