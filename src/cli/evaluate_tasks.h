// SPDX-License-Identifier: Apache-2.0
// `evaluate --tasks`: a model's results on task files, perhaps with those of another.
#pragma once
#include "cli/verb.h"

namespace anabatic::cli {

// 1 when a comparison finds a drop beyond --max_drop, else 0.
int run_evaluate_tasks(const Invocation& invocation);

}  // namespace anabatic::cli
