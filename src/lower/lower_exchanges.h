// SPDX-License-Identifier: Apache-2.0
// Exchanges of a plan → the points of a program at which ranks post and await them.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "plan/plan.h"
#include "runtime/program.h"

namespace anabatic::lower {

// Without its buffer.
runtime::Exchange lower_exchange(const ir::Graph& graph, const plan::Exchange& exchange);

// What happens during the calls of an action in the micro-batches that end a step; `positions` are
// those of the calls' nodes.
std::vector<runtime::ExchangePoint> exchange_points(const plan::Plan& plan, spec::Action action,
                                                    std::span<const std::int32_t> positions);

// Throws InternalError unless every micro-batch that ends a step, with the update after it, posts
// and awaits each exchange of the plan once, and posts in the plan's order.
void verify_exchanges(const plan::Plan& plan, const runtime::Program& program);

}  // namespace anabatic::lower
