// SPDX-License-Identifier: Apache-2.0
// `quantization_config` of config.json: what it says of the files, which tell the rest themselves.
#pragma once
#include <string>

#include "model/config_reader.h"

namespace anabatic::model {

// Problems of methods whose weights are not read. Known are fp8 (F8_E4M3 in blocks of 128 x 128)
// and mxfp4.
void read_quantization(ConfigReader& reader);

// The text of a config.json for weights that are written as numbers.
std::string without_quantization(const std::string& config);
// The same for experts in MXFP4. One that says so already stays as it is.
std::string with_mxfp4(const std::string& config);

}  // namespace anabatic::model
