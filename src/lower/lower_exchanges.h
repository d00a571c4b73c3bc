// SPDX-License-Identifier: Apache-2.0
// Exchanges of a plan → the points of a program at which ranks post and await them.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "plan/plan.h"
#include "runtime/program.h"

namespace anabatic::lower {

using OperandOf = std::function<runtime::Operand(ir::ValueId)>;
runtime::Exchange lower_exchange(const ir::Node& node, const OperandOf& operand_of);

// What happens during the calls of an action in the micro-batches at a place; `positions` are those
// of the calls' nodes. The plan's first exchange is number `first` of the program.
std::vector<runtime::ExchangePoint> exchange_points(const ir::Graph& graph, const plan::Plan& plan,
                                                    spec::Action action, spec::Place place,
                                                    std::span<const std::int32_t> positions,
                                                    std::int32_t first);

// Throws InternalError unless a micro-batch at each of these places, with the update after the one
// that ends a step, posts and awaits each of its exchanges once, and posts in the plan's order.
void verify_exchanges(const ir::Graph& graph, const plan::Plan& plan, spec::Places places,
                      std::int32_t first, const runtime::Program& program);

}  // namespace anabatic::lower
