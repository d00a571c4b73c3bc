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

class PeerStates;
namespace swap {
class SwapSpace;
}

// Where the bytes of a state are.
enum class Tier : std::uint8_t {
  kMemory,
  kDisk,
  kPeer  // in the memory of another rank
};

class StateStore {
 public:
  StateStore();
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // Adds a zeroed state. If one of that name exists, checks that it has this type, tier and part
  // (InvalidArgument otherwise). The view of a state that is not in
  // memory has no data.
  TensorView add(Name name, const TensorType& type, Tier tier = Tier::kMemory,
                 const spec::StatePart& part = {});
  // Likewise one of which rank `holder` has the bytes.
  void add_peer(Name name, const TensorType& type, const spec::StatePart& part,
                std::int32_t holder);
  // Removes a state in memory and frees its bytes. No program may be bound to it any more.
  void remove(Name name);
  bool has(Name name) const;
  TensorView find(Name name) const;  // InvalidArgument naming the state when absent
  spec::StatePart part(Name name) const;
  std::vector<Name> names() const;  // sorted by text
  // The states of that role and owner, ascending by rows: none, the whole one, its slices, or those
  // that ranks hold. A parameter that ranks share owns its parts.
  std::span<const Name> parts(spec::StateRole role, Name owner) const;
  std::int64_t num_bytes() const;        // in memory, with the swap space's staging buffer
  std::int64_t allocated_bytes() const;  // likewise, with the unused rest of small states' blocks

  // Where states on disk are stored; to be set before the first of them is added.
  void set_swap(std::unique_ptr<swap::SwapSpace> swap);
  swap::SwapSpace* swap() const;  // null: none
  Tier tier(Name name) const;
  std::size_t region(Name name) const;  // of the swap space; only for a state on disk

  std::int32_t holder(Name name) const;  // only for a state of another rank
  // How states of other ranks are read, while they answer; null: they do not.
  void set_peers(PeerStates* peers);
  PeerStates* peers() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Bytes that a store allocates for states of these sizes, added in this order.
std::int64_t allocated_bytes(std::span<const std::int64_t> state_bytes);

}  // namespace anabatic::runtime
