// SPDX-License-Identifier: Apache-2.0
// States of a store in row-major order wherever they stand, in memory or on disk: a part at a time,
// so that no second copy stands and a state on disk never stands in memory whole.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/name.h"
#include "runtime/state_store.h"

namespace anabatic::train {

// Of an element, as rows have it: f32 for a parameter in halves, wherever the lower ones are.
DType row_dtype(const runtime::StateStore& store, Name state);

// Reads and writes elements of f32 states (read also of bf16 ones, widened). Of a parameter that is
// on disk, or whose lower halves are there or in slices, a part is at hand at a time, about a block
// of the disk, so that calls in ascending order move each once. ResourceError of the disk.
class StateCursor {
 public:
  explicit StateCursor(runtime::StateStore& store) : store_(store) {}

  void read(Name state, std::int64_t first, std::span<float> values);
  void write(Name state, std::int64_t first, std::span<const float> values);
  void flush();  // behind the last write

 private:
  // Elements that follow one another and lie together, in the parameter, whole or its upper halves,
  // and in the lower ones.
  struct Part {
    TensorType type{};               // in the parameter
    std::int64_t first_element = 0;  // of it
    std::int64_t first_byte = 0;     // in it
    std::optional<Name> low{};       // the state that holds the lower halves; none: there are none
    std::int64_t low_byte = 0;       // in it
  };
  // Bytes of a part at hand: of a state in memory themselves, else read from disk.
  std::byte* at_hand(Name state, std::int64_t first_byte, std::vector<std::byte>& bytes);
  void put_back(Name state, std::int64_t first_byte, const std::vector<std::byte>& bytes);

  bool select(Name state);  // whether it has parts
  template <class Element, class Body>
  void for_parts(std::int64_t first, std::span<Element> values, Body&& body);
  void load(std::size_t part);

  runtime::StateStore& store_;
  Name state_{};
  std::vector<Part> parts_{};
  std::size_t at_ = 0;                                  // the part at hand; parts_.size(): none
  std::vector<std::byte> upper_bytes_{}, low_bytes_{};  // of a state on disk, else empty
  std::byte *upper_ = nullptr, *low_ = nullptr;         // of the part at hand
  bool is_changed_ = false;
};

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
