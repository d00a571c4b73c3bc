// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise/fake_quantize_tokens.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_tokens(ir::Types inputs, const spec::Attributes& attributes) {
  return {*Check("fake_quantize_tokens", inputs, attributes).floating(0, "x", 2).type};
}

ir::Gradients token_gradient(ir::GraphBuilder&, const ir::Node&, OutputGradients of_outputs) {
  return {of_outputs[0]};
}

}  // namespace

const ir::OpSchema kFakeQuantizeTokens{.name = "fake_quantize_tokens",
                                       .min_inputs = 1,
                                       .max_inputs = 1,
                                       .signature = "(x [T,W]) -> like x",
                                       .infer = infer_tokens,
                                       .gradient = token_gradient,
                                       .cost = cost_an_element<4>,
                                       .may_alias = ir::always<0>};

}  // namespace anabatic::ops
