// SPDX-License-Identifier: Apache-2.0
// `quantization_config` of config.json: what it says of the files, which tell the rest themselves.
#pragma once
#include <string>
#include <vector>

#include "model/config_reader.h"
#include "tensor/weight_grid.h"

namespace anabatic::model {

// Problems of methods whose weights are not read. Known are fp8 (F8_E4M3 in blocks of 128 x 128),
// mxfp4 and compressed-tensors (model/compressed_tensors.h), whose activations stay as they are.
void read_quantization(ConfigReader& reader);

// The text of a config.json for weights that are written as numbers.
std::string without_quantization(const std::string& config);
// The same for experts in MXFP4. One that says so already stays as it is.
std::string with_mxfp4(const std::string& config);
// The same for linear layers in a grid of compressed-tensors, but for `others`. With
// `rounds_activations` they read int8 with a scale for each token.
std::string with_packed_weights(const std::string& config, const WeightGrid& grid,
                                bool rounds_activations, const std::vector<std::string>& others);

}  // namespace anabatic::model
