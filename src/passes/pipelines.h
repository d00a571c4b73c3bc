// SPDX-License-Identifier: Apache-2.0
// Which passes run, in their order.
#pragma once
#include <string_view>
#include <vector>

#include "passes/pass.h"

namespace anabatic::passes {

std::vector<Pass> training_pipeline();   // forward graph with objective -> step with update
std::vector<Pass> inference_pipeline();  // evaluation, prefill and decoding

// The end of the training pipeline: the passes that depend on spec::Decisions. A graph that went
// through the pipeline without decisions goes through these passes for each decision that is tried.
std::vector<Pass> decided_pipeline();

// Any pass of a pipeline by its name; null if there is none.
const Pass* find_pass(std::string_view name);

}  // namespace anabatic::passes
