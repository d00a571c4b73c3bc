// SPDX-License-Identifier: Apache-2.0
// `anabatic check-op`: whether the ops and kernels of a plugin keep to the contract of
// include/anabatic/plugin.h.
#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/plugin_kernel.h"
#include "plugin/plugin_op.h"

namespace anabatic::plugin::check {

struct Report {
  int num_passed = 0, num_failed = 0, num_skipped = 0;  // cases
  // The first of each kind: "[check-op] relu2 forward writes to input 0 (f32, R=7)".
  std::vector<std::string> failures{};
  // What was not checked, and why: "3 skipped, the first one (f32, N=0): ...".
  std::vector<std::string> notes{};
};

// Each case runs in a child for at most `limit`. One that takes longer is the last. Finite
// differences and results in narrow dtypes: check/differences.cpp and check/comparisons.cpp have
// the bounds.
Report check_op(const PluginOp& op, std::chrono::seconds limit);

// Likewise, in the forms of check/kernel_forms.cpp, against ref.
bool can_check(const PluginKernel& kernel);  // whether there are forms
Report check_kernel(const PluginKernel& kernel, std::chrono::seconds limit);

// "relu2: 54 cases passed, 3 skipped".
std::string to_string(const Report& report, std::string_view name);

}  // namespace anabatic::plugin::check
