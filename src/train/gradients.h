// SPDX-License-Identifier: Apache-2.0
// Loss, logits and every gradient of given tokens, under the tensor names of the model directory:
// how anyone compares us with anything.
#pragma once
#include <filesystem>

#include "train/run_config.h"

namespace anabatic::train {

// `tokens` holds int64 `input_ids` [B,S] and `labels` [B,S] in Hugging Face's meaning: the shift is
// done here, -100 is ignored. Writes `loss` f32[] (with the auxiliary loss when the config sets
// output_router_logits, as transformers returns it), `logits` f32[B,S,V] and `grad.<tensor>` f32
// for every tensor of the model. InvalidArgument lists what is missing or misshapen in `tokens`.
void write_gradients(const RunConfig& run, const std::filesystem::path& tokens,
                     const std::filesystem::path& output);

}  // namespace anabatic::train
