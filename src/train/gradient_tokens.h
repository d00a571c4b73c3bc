// SPDX-License-Identifier: Apache-2.0
// The tokens that `gradients` is given, as transformers' models read them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "io/data/loader.h"
#include "model/model.h"

namespace anabatic::train {

struct GradientTokens {
  std::int64_t batch = 0, length = 0;  // of input_ids
  // Padding is left out, so nothing attends to it and no router counts it.
  io::MicroBatch micro_batch;
  std::vector<std::int64_t> places;  // of the micro-batch's tokens in [batch * length]
};

// Reads int64 tensors [B,S]: `input_ids`, `labels` (the shift is done here, -100 is ignored) and,
// if they are there, `attention_mask` (bool too; 0: padding) and `position_ids` (or [1,S]).
// Positions that do not count on by one begin another document, as in transformers, where no mask
// is given. InvalidArgument names every tensor that is missing, misshapen, of no use here, or that
// asks for what the model's attention cannot do with padding left out.
GradientTokens read_gradient_tokens(const std::filesystem::path& path,
                                    const model::ModelConfig& config);

}  // namespace anabatic::train
