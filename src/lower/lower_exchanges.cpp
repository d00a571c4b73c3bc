// SPDX-License-Identifier: Apache-2.0
#include "lower/lower_exchanges.h"

#include <algorithm>

#include "base/error.h"
#include "lower/planned_calls.h"
#include "ops/ranks/exchange.h"

namespace anabatic::lower {
namespace {

// Numbers of the exchanges that a step posts or awaits.
std::vector<std::int32_t> steps_of(const runtime::Program& program, spec::Place place,
                                   runtime::ExchangeStep step) {
  std::vector<std::int32_t> result;
  for (const auto& [action, variants] : program.variants)
    for (const runtime::Variant& variant : variants)
      for (const runtime::ExchangePoint& point : variant.exchange_points)
        if (variant.places.contains(place) && point.step == step) result.push_back(point.exchange);
  return result;
}

comm::ExchangeKind kind_of(const ir::Node& node) {
  using enum comm::ExchangeKind;
  if (node.op == &ops::kAllGather) return kAllGather;
  if (node.op == &ops::kReduceScatter) return kReduceScatter;
  ANABATIC_CHECK(node.op == &ops::kAllReduce, "[lower] {} is no exchange", node.op->name);
  return kAllReduce;
}

}  // namespace

runtime::Exchange lower_exchange(const ir::Graph& graph, const plan::Exchange& exchange) {
  const ir::Node& node = graph.node(exchange.node);
  return {.kind = kind_of(node),
          .group = ops::group_of(node.attributes),
          .label = plan::node_label(node)};
}

std::vector<runtime::ExchangePoint> exchange_points(const plan::Plan& plan, spec::Action action,
                                                    std::span<const std::int32_t> positions) {
  Span span = span_of(plan, action);
  // What nothing reads is awaited after the last node of the step.
  if (action == plan.orders.rbegin()->first) ++span.end;
  std::vector<runtime::ExchangePoint> points;
  const auto add = [&](std::int32_t position, runtime::ExchangeStep step, std::size_t exchange) {
    if (!span.contains(position)) return;
    const auto call = std::ranges::lower_bound(positions, position) - positions.begin();
    points.push_back({static_cast<std::int32_t>(call), step, static_cast<std::int32_t>(exchange)});
  };
  for (std::size_t i = 0; i < plan.exchanges.size(); ++i) {
    add(plan.exchanges[i].posted_at, runtime::ExchangeStep::kPost, i);
    add(plan.exchanges[i].awaited_at, runtime::ExchangeStep::kAwait, i);
  }
  // Posts first: an exchange may be awaited before the call that follows its post.
  std::ranges::stable_sort(points, {}, [](const runtime::ExchangePoint& point) {
    return std::pair(point.call, point.step);
  });
  return points;
}

void verify_exchanges(const plan::Plan& plan, const runtime::Program& program) {
  ANABATIC_CHECK(program.exchanges.size() == plan.exchanges.size(),
                 "[lower verifier] {} exchanges, {} planned", program.exchanges.size(),
                 plan.exchanges.size());
  for (const spec::Place place : spec::kPlaces) {
    if (!(plan.places & spec::kStepEnds).contains(place)) continue;
    const std::vector<std::int32_t> posts = steps_of(program, place, runtime::ExchangeStep::kPost);
    std::vector<std::int32_t> awaits = steps_of(program, place, runtime::ExchangeStep::kAwait);
    std::ranges::sort(awaits);
    for (const std::vector<std::int32_t>& steps : {posts, awaits}) {
      ANABATIC_CHECK(steps.size() == plan.exchanges.size(),
                     "[lower verifier] the {} micro-batch has {} of {} exchanges", to_string(place),
                     steps.size(), plan.exchanges.size());
      for (std::size_t i = 0; i < steps.size(); ++i)
        ANABATIC_CHECK(steps[i] == static_cast<std::int32_t>(i),
                       "[lower verifier] exchange {} of the {} micro-batch is out of order",
                       steps[i], to_string(place));
    }
  }
}

}  // namespace anabatic::lower
