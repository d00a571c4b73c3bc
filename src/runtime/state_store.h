// SPDX-License-Identifier: Apache-2.0
// States by name, shared by the programs of training, evaluation, prefill and decoding.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/name.h"
#include "spec/state.h"
#include "tensor/tensor_type.h"

namespace anabatic::runtime {

namespace swap {
class SwapSpace;
}

// Where the bytes of a state stand.
enum class Tier : std::uint8_t { kMemory, kDisk };

class StateStore {
 public:
  StateStore();
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // Adds a zeroed state, or checks that the one of that name has this type, tier and part
  // (InvalidArgument otherwise). The view of a state on disk has no data.
  TensorView add(Name name, const TensorType& type, Tier tier = Tier::kMemory,
                 const spec::StatePart& part = {});
  // Forgets a state in memory, which no program may be bound to any more, and frees its bytes.
  void remove(Name name);
  bool has(Name name) const;
  TensorView find(Name name) const;  // InvalidArgument naming the state when absent
  spec::StatePart part(Name name) const;
  std::vector<Name> names() const;  // sorted by text
  // The states of that role and owner, ascending by rows: none, the whole one, or its slices.
  std::span<const Name> parts(spec::StateRole role, Name owner) const;
  std::int64_t num_bytes() const;        // in memory, with the swap space's staging buffer
  std::int64_t allocated_bytes() const;  // likewise, with what small states leave of their blocks

  // Where states on disk go; to be given before the first of them is added.
  void set_swap(std::unique_ptr<swap::SwapSpace> swap);
  swap::SwapSpace* swap() const;  // null: none
  Tier tier(Name name) const;
  std::size_t region(Name name) const;  // of the swap space; only for a state on disk

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What a store takes from the system for states of these sizes, added in this order.
std::int64_t allocated_bytes(std::span<const std::int64_t> state_bytes);

}  // namespace anabatic::runtime
