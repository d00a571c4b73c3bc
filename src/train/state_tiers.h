// SPDX-License-Identifier: Apache-2.0
// States of a store in row-major order wherever they stand, in memory or on disk: a part at a time,
// so that no second copy stands and a state on disk never stands in memory whole.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/name.h"
#include "runtime/state_store.h"

namespace anabatic::train {

// That a cursor has parts of at once: gate, up and down of an expert.
inline constexpr std::size_t kMostOpenParameters = 3;

// Of the store's states.
std::set<std::string, std::less<>> names_on_disk(const runtime::StateStore& store);

// Of an element, as rows have it: f32 for a parameter in halves, wherever the lower ones are.
DType row_dtype(const runtime::StateStore& store, Name state);

// Reads and writes elements of f32 states (read also of bf16 ones, widened). Of a parameter that is
// on disk, or whose lower halves are there or in slices, a part is at hand at a time, about a block
// of the disk, so that calls in ascending order move each once; of several in turn, as files have
// the matrices of experts, too. ResourceError of the disk.
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
  // A parameter that has a part at hand.
  struct Open {
    Name state{};
    std::vector<Part> parts{};
    std::size_t at = 0;                                 // the part at hand; parts.size(): none
    std::vector<std::byte> upper_bytes{}, low_bytes{};  // of states on disk, else empty
    std::byte *upper = nullptr, *low = nullptr;         // of the part at hand
    bool is_changed = false;
    std::uint64_t used = 0;  // when last, counted in calls; 0: never
  };

  Open* open(Name state);  // null: in memory whole
  std::vector<Part> parts_of_parameter(Name state) const;
  void load(Open& open, std::size_t part);
  // Bytes of a part: of a state in memory themselves, else read from disk into `bytes`.
  std::byte* at_hand(Name state, std::int64_t first_byte, std::int64_t num_bytes,
                     std::vector<std::byte>& bytes);
  void put_back(Open& open);
  template <class Element, class Body>
  void for_parts(Open& open, std::int64_t first, std::span<Element> values, Body&& body);

  runtime::StateStore& store_;
  std::array<Open, kMostOpenParameters> open_{};
  std::uint64_t calls_ = 0;
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
