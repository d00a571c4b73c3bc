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
#include "tensor/tensor_type.h"

namespace anabatic::runtime {

class StateStore {
 public:
  StateStore();
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  // Adds a zeroed state, or checks that the one of that name has this type (InvalidArgument
  // otherwise).
  TensorView add(Name name, const TensorType& type);
  bool has(Name name) const;
  TensorView find(Name name) const;  // InvalidArgument naming the state when absent
  std::vector<Name> names() const;   // sorted by text
  std::int64_t num_bytes() const;
  std::int64_t allocated_bytes() const;  // with what small states leave of their blocks

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What a store takes from the system for states of these sizes, added in this order.
std::int64_t allocated_bytes(std::span<const std::int64_t> state_bytes);

}  // namespace anabatic::runtime
