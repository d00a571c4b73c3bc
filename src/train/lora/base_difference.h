// SPDX-License-Identifier: Apache-2.0
// What a run's model loses where its frozen weights are quantised (lora.base).
#pragma once
#include <string>

#include "io/data/dataset.h"
#include "train/run_config.h"

namespace anabatic::train {

// Its loss on the first rows of `dataset`, before training, next to that with the weights in bf16.
// Each is a model of its own, which is gone afterwards. Where the weights in bf16 do not fit in
// memory, the text says that nothing was compared.
std::string base_difference_to_string(const RunConfig& run, const io::Dataset& dataset);

}  // namespace anabatic::train
