// SPDX-License-Identifier: Apache-2.0
// States by name, shared by the programs of training, evaluation, prefill and decoding.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
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

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace anabatic::runtime
