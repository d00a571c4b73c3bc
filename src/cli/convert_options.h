// SPDX-License-Identifier: Apache-2.0
// What `convert` and `lora merge` have in common: the form of what they write, and its errors.
#pragma once
#include <string>
#include <string_view>

#include "cli/verb.h"
#include "train/convert/convert.h"

namespace anabatic::cli {

// Sets format and dtype by --format and --dtype, or by the name of the result. `place` begins the
// messages of InvalidArgument.
void set_form(const Invocation& invocation, const std::string& destination, std::string_view place,
              train::ConvertOptions& options);

// A line for each weight that was written in a grid: the largest difference between a value and
// what the file holds of it.
void print_grid_errors(const train::Manifest& manifest);

}  // namespace anabatic::cli
