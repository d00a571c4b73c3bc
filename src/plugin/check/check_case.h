// SPDX-License-Identifier: Apache-2.0
// All checks of one case of an op.
#pragma once
#include "plugin/check/cases.h"
#include "plugin/check/child.h"

namespace anabatic::plugin::check {

// In a child, which it ends: forward and backward write all of their outputs and nothing else, with
// equal bits in every call, on any number of threads and whichever gradients are absent. A narrow
// dtype gives what the widest gives, gradients what finite differences give.
[[noreturn]] void check_case(const PluginOp& op, const Case& one, Reporter& reporter);

}  // namespace anabatic::plugin::check
