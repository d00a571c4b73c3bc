// SPDX-License-Identifier: Apache-2.0
// check template MODEL: what the model's chat template makes of the built-in conversations.
#pragma once
#include <string>

namespace anabatic::cli {

// Compares with transformers where `python` has it, else prints the texts. The process's exit code.
int check_template(const std::string& model, const std::string& template_file,
                   const std::string& python);

}  // namespace anabatic::cli
