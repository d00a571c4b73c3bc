// SPDX-License-Identifier: Apache-2.0
// When exchanges between ranks are posted and awaited.
#pragma once
#include <vector>

#include "plan/plan.h"

namespace anabatic::plan {

// The exchanges of a graph in the order of their nodes in `order`, which is forward ++ backward ++
// update. Each is posted at its node and awaited before its first reader; at once in the `trivial`
// form. One without a reader is awaited at the end of its micro-batch, or of the step if it is of
// the update. All ranks plan alike, so the order of posts is one for all.
std::vector<Exchange> find_exchanges(const ir::Graph& graph, const std::vector<ir::NodeId>& order,
                                     bool trivial);

}  // namespace anabatic::plan
