// SPDX-License-Identifier: Apache-2.0
// One valid node of every op, for tests that go through the whole table.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "ir/op_schema.h"

namespace anabatic::testing {

struct OpSample {
  std::string op;
  // Types of the inputs; a leading 'x' stands for the storage dtype, 'w' for the wide one (f32, or
  // f64 when the storage dtype is).
  std::vector<std::string> inputs;
  spec::Attributes attributes;
  std::vector<std::size_t> differentiable_outputs{0};
  std::set<std::string, std::less<>> optional{};  // attributes without which it is valid too
};

const std::vector<OpSample>& op_samples();

// The types of a sample's inputs with that storage dtype.
std::vector<TensorType> sample_types(const OpSample& sample, DType storage);

// Adds batch inputs and the sample's node; returns the node. Index maps come from route_sort.
ir::NodeId add_sample(ir::GraphBuilder& builder, const OpSample& sample, DType storage);

}  // namespace anabatic::testing
