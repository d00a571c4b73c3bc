// SPDX-License-Identifier: Apache-2.0
// Reverse mode from the graph's objective, and from gradients of outputs that are given (seeds). It
// adds backward nodes after the forward ones, with phase kBackwardInput or kBackwardWeight and the
// layer and segment of the node they belong to.
//
//   %y = linear(%x, w)   ->   ... %dx = linear_input_gradient(%dy, w)
//                                 %dw = linear_weight_gradient(%x, %dy)   output gradients.w.0
//
// The gradient of a value with several readers is a chain of `add` in the order of the backward
// walk. Gradients of parameter NAME, also those of states derived from it, are listed as outputs
// `gradients.NAME.0`, `gradients.NAME.1`, ... in the order of their writers.
//
// With OptimizerOptions::scales_loss the objective's gradient is a step input `loss_scale` in place
// of 1, and so every gradient is that of the loss times it, which the update undoes.
//
// With PassOptions::gradients the gradient of output NAME is a batch input `seeds.NAME`, and that
// of input NAME an output `gradients.NAME`, one sum. An input that no seed reaches has zeroes.
// Inputs that are not named cost nothing, like frozen parameters.
//
// Linear in nodes. It runs after precision, which fixes dtypes, and before accumulate_gradients,
// which takes the outputs of parameters.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "passes/pass.h"

namespace anabatic::passes {

extern const Pass kDifferentiate;

// "gradients.NAME.I": the I-th contribution between differentiate and accumulate_gradients.
std::string contribution_name(std::string_view parameter, std::size_t i);

inline constexpr std::string_view kLossScale = "loss_scale";
std::optional<ir::ValueId> find_loss_scale(const ir::Graph& graph);

std::string seed_name(std::string_view output);           // "seeds.NAME"
std::string input_gradient_name(std::string_view input);  // "gradients.NAME"

}  // namespace anabatic::passes
