// SPDX-License-Identifier: Apache-2.0
// Runs layers on buffers of a test, and the same in double: the layer's own graph, not fused, node
// by node on ref kernels.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "anabatic/layers.h"
#include "support/host_tensor.h"

namespace anabatic::testing {

struct LayerCase {
  std::string name;
  LayerSignature signature;
  std::int64_t width = 1;  // the largest depth of a sum, for bounds
  bool rounds_to_bf16 = false;
};

// Tensors by name: inputs; outputs, and gradients as "gradients.x".
using Tensors = std::map<std::string, HostTensor>;
using ValuesByName = std::map<std::string, Values>;

LayerTensor tensor(std::string name, LayerDtype dtype, std::vector<std::int64_t> shape);

// Random floats, and integers that fit. Weights are divided by the root of their width.
ValuesByName make_inputs(const LayerSignature& signature, std::uint64_t seed);
// Gradients of the outputs of a call, by the outputs' names.
ValuesByName make_seeds(const LayerCall& call, std::uint64_t seed);

// Forward, then backward for all gradients of the signature. Packings are made before, and weights
// that come packed are not passed.
Tensors run_layer(const LayerCall& call, const LayerSignature& signature,
                  const ValuesByName& inputs, const ValuesByName& seeds);

// The same in double: outputs and gradients.
ValuesByName run_in_double(const LayerSignature& signature, const ValuesByName& inputs,
                           const ValuesByName& seeds);
// The outputs alone.
ValuesByName forward_in_double(const LayerSignature& signature, const ValuesByName& inputs);

// Every layer in fp32 and with bf16 products, over f32 and bf16 operands.
std::vector<LayerCase> layer_cases();
const LayerCase& layer_case(const std::string& name);

}  // namespace anabatic::testing
