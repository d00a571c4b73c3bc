// SPDX-License-Identifier: Apache-2.0
// An item of `model.replace`.
#pragma once
#include <string>

namespace anabatic::plugin {

// "{segment: mlp, op: swiglu, with: my_swiglu}". The op is an op of the engine, or the activation
// of its op `activation`.
struct Replacement {
  std::string segment, op, with;
};
// InvalidArgument for a text that is none: what is missing, unknown or given twice.
Replacement parse_replacement(const std::string& text);
std::string to_string(const Replacement& replacement);

}  // namespace anabatic::plugin
