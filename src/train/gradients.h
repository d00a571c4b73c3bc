// SPDX-License-Identifier: Apache-2.0
// Loss, logits and every gradient of given tokens, under the tensor names of the model directory:
// how anyone compares us with anything.
#pragma once
#include <filesystem>

#include "train/run_config.h"

namespace anabatic::train {

// `tokens` holds what read_gradient_tokens says. Writes `loss` f32[] (with the auxiliary loss when
// the config sets output_router_logits, as transformers returns it), `logits` f32[B,S,V], zero at
// padding, and `grad.<tensor>` f32 for every tensor of the model.
void write_gradients(const RunConfig& run, const std::filesystem::path& tokens,
                     const std::filesystem::path& output);

}  // namespace anabatic::train
