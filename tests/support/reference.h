// SPDX-License-Identifier: Apache-2.0
// Runs the ref kernel of an op on tensors that tests own.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"
#include "support/host_tensor.h"

namespace anabatic::testing {

// A call by value: what kernels, bounds and finite differences all start from.
struct OpCall {
  std::string_view op;
  spec::Attributes attributes;
  std::vector<Values> inputs;
  std::vector<TensorType> outputs;
};

// Outputs of the ref kernel; `before`, when given, holds what each output adds to.
std::vector<HostTensor> run_reference(const OpCall& call, std::span<const Values> before = {});

// The call with weights of products that are quantised as the bf16 values that stand for them.
OpCall with_plain_weights(OpCall call);

// As run_reference with every float dtype widened to f64, so that nothing is rounded to storage.
std::vector<Values> run_in_double(const OpCall& call);

}  // namespace anabatic::testing
