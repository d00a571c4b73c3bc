// SPDX-License-Identifier: Apache-2.0
// All checks of one case of a kernel for an op of the engine.
#pragma once
#include "plugin/check/child.h"
#include "plugin/check/kernel_forms.h"
#include "plugin/plugin_kernel.h"

namespace anabatic::plugin::check {

// In a child, which it ends: a call that the kernel supports writes all of its outputs and nothing
// else, with equal bits in every call, on any number of threads, and where an output overwrites an
// input as plans have it. Results are near those of ref.
[[noreturn]] void check_kernel_case(const PluginKernel& kernel, const KernelForm& form,
                                    const Case& one, Reporter& reporter);

}  // namespace anabatic::plugin::check
