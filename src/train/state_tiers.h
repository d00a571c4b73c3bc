// SPDX-License-Identifier: Apache-2.0
// States of a store in row-major order, whether they are in memory, on disk or on another rank.
// They are processed a part at a time, so that there is never a second copy, and never a whole
// state of another tier in memory.
//
// What other ranks hold is read where they answer (StateStore::peers), else an InternalError. It is
// never written: each rank fills its own.
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
#include "train/lora/quantized_rows.h"
#include "train/ranks/held_parts.h"

namespace anabatic::train {

// Most parameters of which a cursor has parts loaded: gate, up and down of an expert.
inline constexpr std::size_t kMostOpenParameters = 3;

// Names of the states of the store that are on disk.
std::set<std::string, std::less<>> names_on_disk(const runtime::StateStore& store);

// Elements of a parameter on all ranks.
std::int64_t num_elements(const runtime::StateStore& store, Name parameter);

// Dtype of an element in row-major order: f32 for a split parameter.
DType row_dtype(const runtime::StateStore& store, Name state);

// Reads and writes elements of f32 states; reads bf16 states too, widened, and quantises what it
// writes to states in int8 or MXFP4. If a parameter or its lower 16 bits are on disk, or the latter
// in slices, one part of about a disk block is loaded at a time. Calls in ascending order move each
// part once. Several parameters may take turns, as the matrices of experts do in files.
// ResourceError of the disk, CommError of other ranks.
class StateCursor {
 public:
  explicit StateCursor(runtime::StateStore& store) : store_(store) {}

  void read(Name state, std::int64_t first, std::span<float> values);
  void write(Name state, std::int64_t first, std::span<const float> values);
  // Whole blocks of MXFP4 as they are, if the state is kept in it; else false, and nothing is
  // written.
  bool write_mxfp4(Name state, std::int64_t first, std::span<const std::byte> pairs,
                   std::span<const std::byte> scales);
  void flush();  // after the last write

 private:
  // Contiguous elements: in the parameter, whole or its upper 16 bits, and in the lower 16 bits.
  struct Part {
    TensorType type{};               // in the parameter
    std::int64_t first_element = 0;  // of it
    Name upper{};                    // the state with them: the parameter, or a rank's part of it
    std::int64_t first_byte = 0;     // in it
    std::optional<Name> low{};       // the state with the lower 16 bits; none: there is none
    std::int64_t low_byte = 0;       // in it
  };
  // A parameter with at most one part loaded.
  struct Open {
    Name state{};
    std::vector<Part> parts{};
    std::size_t at = 0;                                 // the loaded part; parts.size(): none
    std::vector<std::byte> upper_bytes{}, low_bytes{};  // of states on disk, else empty
    std::byte *upper = nullptr, *low = nullptr;         // of the loaded part
    bool is_changed = false;
    std::uint64_t used = 0;  // counter of the last call that used it; 0: never
  };

  Open* open(Name state);  // null: in memory whole
  std::vector<Part> parts_of_parameter(Name state) const;
  void load(Open& open, std::size_t part);
  // The bytes of a part: in place for a state in memory, else read into `bytes`.
  std::byte* at_hand(Name state, std::int64_t first_byte, std::int64_t num_bytes,
                     std::vector<std::byte>& bytes);
  bool is_out_of_reach(Name state) const;  // on a rank that does not answer
  void put_back(Open& open);
  template <class Element, class Body>
  void for_parts(Open& open, std::int64_t first, std::span<Element> values, Body&& body);
  // Calls body(part, first element in it, begin in the range, count) for what this rank has, whole
  // in memory, of elements [first, first + count).
  template <class Body>
  void for_own_parts(Name state, std::int64_t first, std::int64_t count, Body&& body);

  runtime::StateStore& store_;
  std::array<Open, kMostOpenParameters> open_{};
  QuantizedRows quantized_;
  std::uint64_t calls_ = 0;
};

// The bytes of a state in row-major order, a block at a time. ResourceError if the disk returns
// other bytes than were written.
void for_state_bytes(runtime::StateStore& store, Name state,
                     const std::function<void(std::span<const std::byte>)>& body);

// Fills a state. source(first, block) gives the elements from `first` on, for every element once,
// in ascending order. Parts of a parameter that other ranks hold are left out.
void fill_state(runtime::StateStore& store, Name state,
                const std::function<void(std::int64_t first, std::span<std::byte>)>& source);

// A tensor of a checkpoint: a state of the store, slices of one that follow one another
// (passes/slice_optimizer.h), or the scales of a quantised state.
struct SavedState {
  Name name{};
  TensorType type{};                // of the whole, with the dtype of its elements in files
  std::vector<Name> slices{};       // that this rank has; empty: the state of that name, or
  std::optional<Name> scales_of{};  // a quantised state, whose elements are a tensor of their own
  std::vector<HeldPart> parts{};    // that ranks hold; empty: each holds all
};

// The bytes of these rows, by default of all, in row-major order. They are whole parts.
void for_state_bytes(runtime::StateStore& store, const SavedState& state, const spec::Rows& rows,
                     const std::function<void(std::span<const std::byte>)>& body);
// As above, for every element that this rank holds.
void fill_state(runtime::StateStore& store, const SavedState& state,
                const std::function<void(std::int64_t first, std::span<std::byte>)>& source);

}  // namespace anabatic::train
