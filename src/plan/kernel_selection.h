// SPDX-License-Identifier: Apache-2.0
// Which kernel runs each node: the first row of its op's table that supports the problem.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "kernels/kernel.h"
#include "spec/device_spec.h"
#include "spec/step.h"
#include "tensor/tensor_type.h"

namespace anabatic::plan {

struct KernelChoice {
  const kernels::Kernel* kernel = nullptr;
  std::int64_t workspace_bytes = 0, slicing_bytes = 0;  // as the kernel says
  std::vector<std::string> rejections{};  // "cpu:x: reason", rows before the chosen one
};

// The rows that a plan chooses from.
struct KernelRows {
  kernels::FindKernels find = kernels::candidates;
  std::string_view only{};  // those whose name starts with it; empty: all
};

// The first candidate that supports the problem. Unsupported listing every candidate and its reason
// when there is none; `where` names the node.
KernelChoice select_kernel(const spec::Problem& problem, const KernelRows& rows,
                           std::string_view where);

// Per node, for micro-batches at these places; accumulate has none. `explanation`, if not null,
// gets one line a node.
std::vector<KernelChoice> select_kernels(const ir::Graph& graph, const spec::DeviceSpec& device,
                                         const KernelRows& rows, spec::Places places,
                                         std::vector<std::string>* explanation);

// spec::Problem::may_add of the calls of a graph. A gradient is added to where a step has several
// micro-batches, or several nodes contribute.
class Additions {
 public:
  Additions(const ir::Graph& graph, spec::Places places);
  bool may_add(const ir::Node& node) const;

 private:
  std::vector<bool> is_added_;  // by value
};

// Types of a node's operands next to each other, as spec::Problem needs them.
struct NodeTypes {
  std::vector<TensorType> inputs, outputs;
};
NodeTypes node_types(const ir::Graph& graph, const ir::Node& node);
// The same for prices: products over rows that other ranks send have as many of them as are
// expected, in place of the most that may come (ops/ranks/dispatch_map.h).
NodeTypes expected_types(const ir::Graph& graph, const ir::Node& node);

// Attributes of the `fill` that zeroes a buffer of that type.
spec::Attributes zero_fill_attributes(const TensorType& type);

}  // namespace anabatic::plan
