// SPDX-License-Identifier: Apache-2.0
// The forms in which a value may be saved for the backward, their bytes in memory, and the ops that
// convert it to the form and back. Read-only.
#pragma once
#include <cstdint>
#include <string_view>

#include "ir/graph.h"
#include "spec/decisions.h"

namespace anabatic::analysis {

// Whether a value may be saved in a form. As bf16 or int8: f32 or bf16 matrices that products,
// norms, sums, rotations, gathers and attention compute on the residual path. Never indices, inputs
// of the router's decision, or statistics such as log-sum-exp, whose error would not stay in
// proportion. On disk, which changes no bit: any floats that a node of the forward computes.
bool may_wait_as(const ir::Graph& graph, ir::ValueId value, spec::SavedForm form);

// Bytes in memory of the type in that form.
std::int64_t saved_bytes(const TensorType& type, spec::SavedForm form);

struct Conversion {
  std::string_view op;  // empty: none is needed
  spec::Attributes attributes{};
};

// The op that converts to the form; and the one from it, back to `dtype`. kWhole needs none.
Conversion conversion_to(spec::SavedForm form);
Conversion conversion_from(spec::SavedForm form, DType dtype);

}  // namespace anabatic::analysis
