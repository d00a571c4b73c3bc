// SPDX-License-Identifier: Apache-2.0
// What a model's files hold, without loading it.
#pragma once
#include <string>

#include "anabatic/export.h"

namespace anabatic {

// The JSON object of `anabatic info PATH --json`: family, layers, parameters, weights, tokenizer,
// what is ignored and why. Of a plugin, a file ending in .so: its ops and kernels. For a family
// that nothing here reads, "is_supported" is false and the problems are listed. InvalidArgument if
// there is no model at `path`.
ANABATIC_API std::string model_info(const std::string& path);

}  // namespace anabatic
