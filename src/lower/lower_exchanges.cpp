// SPDX-License-Identifier: Apache-2.0
#include "lower/lower_exchanges.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "lower/planned_calls.h"
#include "ops/ranks/exchange.h"
#include "ops/ranks/exchange_rows.h"

namespace anabatic::lower {
namespace {

// Numbers of the exchanges that a micro-batch at this place posts or awaits, with the update after
// the one that ends a step.
std::vector<std::int32_t> steps_of(const runtime::Program& program, spec::Place place,
                                   runtime::ExchangeStep step) {
  std::vector<std::int32_t> result;
  for (const auto& [action, variants] : program.variants) {
    if (action == spec::Action::kUpdate && !spec::kStepEnds.contains(place)) continue;
    for (const runtime::Variant& variant : variants)
      for (const runtime::ExchangePoint& point : variant.exchange_points)
        if (variant.places.contains(place) && point.step == step) result.push_back(point.exchange);
  }
  return result;
}

comm::ExchangeKind kind_of(const ir::Node& node) {
  using enum comm::ExchangeKind;
  if (node.op == &ops::kAllGather) return kAllGather;
  if (node.op == &ops::kExchangeRows) return kExchangeRows;
  if (node.op == &ops::kReduceScatter) return kReduceScatter;
  ANABATIC_CHECK(node.op == &ops::kAllReduce, "[lower] {} is no exchange", node.op->name);
  return kAllReduce;
}

// Those of updates belong to the micro-batch that ends a step.
bool runs_at(const ir::Graph& graph, const plan::Exchange& exchange, spec::Place place) {
  return !graph.node(exchange.node).is_of_update() || spec::kStepEnds.contains(place);
}

}  // namespace

runtime::Exchange lower_exchange(const ir::Node& node, const OperandOf& operand_of) {
  runtime::Exchange exchange{.kind = kind_of(node),
                             .group = ops::group_of(node.attributes),
                             .buffer = operand_of(node.outputs.front()),
                             .label = plan::node_label(node)};
  if (exchange.kind != comm::ExchangeKind::kExchangeRows) return exchange;
  runtime::RowOperands& rows = exchange.rows.emplace();
  rows.input = operand_of(node.inputs[0]);
  rows.send_counts = operand_of(node.inputs[1]);
  rows.receive_counts = operand_of(node.inputs[2]);
  if (node.inputs.size() == 3) return exchange;
  rows.row_map = operand_of(node.inputs[3]);
  rows.top_k = spec::get_int(node.attributes, "top_k");
  return exchange;
}

std::vector<runtime::ExchangePoint> exchange_points(const ir::Graph& graph, const plan::Plan& plan,
                                                    spec::Action action, spec::Place place,
                                                    std::span<const std::int32_t> positions,
                                                    std::int32_t first) {
  const Span span = span_of(plan, action);
  const bool is_last = action == plan.orders.rbegin()->first;
  // An await may be due after the last node of a micro-batch.
  const bool ends_micro_batch =
      action != spec::Action::kUpdate && std::ranges::none_of(plan.orders, [&](const auto& order) {
        return order.first > action && order.first != spec::Action::kUpdate;
      });
  std::vector<runtime::ExchangePoint> points;
  const auto add = [&](std::int32_t position, runtime::ExchangeStep step, std::size_t exchange) {
    const auto call = std::ranges::lower_bound(positions, position) - positions.begin();
    points.push_back(
        {static_cast<std::int32_t>(call), step, first + static_cast<std::int32_t>(exchange)});
  };
  for (std::size_t i = 0; i < plan.exchanges.size(); ++i) {
    const plan::Exchange& exchange = plan.exchanges[i];
    if (action != spec::Action::kUpdate && !runs_at(graph, exchange, place)) continue;
    const bool is_of_update = graph.node(exchange.node).is_of_update();
    if (span.contains(exchange.posted_at)) add(exchange.posted_at, runtime::ExchangeStep::kPost, i);
    // What nothing reads is awaited after the last node.
    const bool at_end =
        exchange.awaited_at == span.end && (is_of_update ? is_last : ends_micro_batch);
    const bool is_inside =
        span.contains(exchange.awaited_at) && (is_of_update || action != spec::Action::kUpdate);
    if (is_inside || at_end) add(exchange.awaited_at, runtime::ExchangeStep::kAwait, i);
  }
  // Posts first: an exchange may be awaited before the call that follows its post.
  std::ranges::stable_sort(points, {}, [](const runtime::ExchangePoint& point) {
    return std::pair(point.call, point.step);
  });
  return points;
}

void verify_exchanges(const ir::Graph& graph, const plan::Plan& plan, spec::Places places,
                      std::int32_t first, const runtime::Program& program) {
  ANABATIC_CHECK(
      program.exchanges.size() >= static_cast<std::size_t>(first) + plan.exchanges.size(),
      "[lower verifier] {} exchanges, {} planned from number {} on", program.exchanges.size(),
      plan.exchanges.size(), first);
  for (const spec::Place place : spec::kPlaces) {
    if (!places.contains(place)) continue;
    std::vector<std::int32_t> wanted;
    for (std::size_t i = 0; i < plan.exchanges.size(); ++i)
      if (runs_at(graph, plan.exchanges[i], place))
        wanted.push_back(first + static_cast<std::int32_t>(i));
    const std::vector<std::int32_t> posts = steps_of(program, place, runtime::ExchangeStep::kPost);
    std::vector<std::int32_t> awaits = steps_of(program, place, runtime::ExchangeStep::kAwait);
    std::ranges::sort(awaits);
    ANABATIC_CHECK(posts == wanted && awaits == wanted,
                   "[lower verifier] the {} micro-batch posts exchanges {{{}}} and awaits {{{}}}; "
                   "planned are {{{}}}",
                   to_string(place), fmt::join(posts, ", "), fmt::join(awaits, ", "),
                   fmt::join(wanted, ", "));
  }
}

}  // namespace anabatic::lower
