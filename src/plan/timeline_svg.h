// SPDX-License-Identifier: Apache-2.0
// Draws the bytes of a step over its calls: stacked areas by use, as one self-contained SVG.
#pragma once
#include <string>

#include "plan/plan.h"

namespace anabatic::plan {

// `title` may hold any text. Longer steps than the picture has columns show the fullest call of
// each column.
std::string timeline_svg(const ir::Graph& graph, const Plan& plan, const std::string& title);

}  // namespace anabatic::plan
