// SPDX-License-Identifier: Apache-2.0
#include "plan/order.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "analysis/liveness.h"
#include "base/error.h"
#include "ir/op_schema.h"
#include "ops/ranks/exchange.h"
#include "plan/plan.h"

namespace anabatic::plan {
namespace {

// The part of the frame that it may cost to compute while rows move between ranks: input gradients
// of a layer's experts, next to what their weight gradients read.
constexpr double kOverlapSlack = 0.05;

constexpr spec::Action kActions[] = {spec::Action::kForward, spec::Action::kBackward,
                                     spec::Action::kUpdate};

// Dependencies between called nodes: data flow (seen through accumulate) and storage edges.
struct Dependencies {
  std::vector<std::vector<std::uint32_t>> successors, predecessors;  // each once
  std::vector<std::uint32_t> num_predecessors;                       // that have not run
};

// Calls f on every called node that must have run before `value` is whole.
template <class F>
void for_each_source(const ir::Graph& graph, const std::vector<ir::NodeId>& producer_of,
                     ir::ValueId value, const F& f) {
  const ir::NodeId producer = producer_of[index(value)];
  if (producer == ir::kNoNode) return;
  if (!is_accumulate(graph.node(producer))) return f(producer);
  for (ir::ValueId input : graph.node(producer).inputs)
    for_each_source(graph, producer_of, input, f);
}

// A node of phase recompute, and a copy of a parameter on disk, must not run earlier than needed.
// So they wait for all other inputs of their first reader beyond such nodes. That reader is the
// first in the order of the graph. Nothing that it waits for reads the node's results, so no cycle
// forms.
std::vector<std::pair<ir::NodeId, ir::NodeId>> recompute_edges(
    const ir::Graph& graph, const std::vector<ir::NodeId>& producer_of) {
  const auto is_recompute = [&](ir::NodeId id) {
    const ir::Node& node = graph.node(id);
    return node.tag.phase == ir::Phase::kRecompute || node.op->name == "reload";
  };
  std::vector<ir::NodeId> first_reader(graph.nodes.size(), ir::kNoNode);
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    const ir::NodeId reader = is_recompute(ir::NodeId{static_cast<std::uint32_t>(i)})
                                  ? first_reader[i]
                                  : ir::NodeId{static_cast<std::uint32_t>(i)};
    for (ir::ValueId input : graph.nodes[i].inputs)
      if (const ir::NodeId producer = producer_of[index(input)]; producer != ir::kNoNode)
        first_reader[index(producer)] = std::min(first_reader[index(producer)], reader);
  }
  std::vector<std::pair<ir::NodeId, ir::NodeId>> edges;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::NodeId node{static_cast<std::uint32_t>(i)};
    if (!is_recompute(node) || first_reader[i] == ir::kNoNode) continue;
    for (ir::ValueId input : graph.node(first_reader[i]).inputs)
      for_each_source(graph, producer_of, input, [&](ir::NodeId source) {
        if (!is_recompute(source)) edges.emplace_back(source, node);
      });
  }
  return edges;
}

Dependencies dependencies(const ir::Graph& graph) {
  Dependencies result{std::vector<std::vector<std::uint32_t>>(graph.nodes.size()),
                      std::vector<std::vector<std::uint32_t>>(graph.nodes.size()),
                      std::vector<std::uint32_t>(graph.nodes.size(), 0)};
  const std::vector<ir::NodeId> producer_of = producers(graph);
  const auto add = [&](ir::NodeId first, ir::NodeId second) {
    const spec::Action a = action_of(graph.node(first).tag.phase);
    const spec::Action b = action_of(graph.node(second).tag.phase);
    ANABATIC_CHECK(a <= b, "[order] {} of action {} must run before {} of action {}",
                   node_label(graph.node(first)), to_string(a), node_label(graph.node(second)),
                   to_string(b));
    result.successors[index(first)].push_back(index(second));
  };
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::NodeId node{static_cast<std::uint32_t>(i)};
    if (is_accumulate(graph.node(node))) continue;
    for (ir::ValueId input : graph.node(node).inputs)
      for_each_source(graph, producer_of, input, [&](ir::NodeId source) { add(source, node); });
  }
  for (const auto& [first, second] : storage_edges(graph)) add(first, second);
  for (const auto& [first, second] : recompute_edges(graph, producer_of)) add(first, second);
  for (std::uint32_t node = 0; node < graph.nodes.size(); ++node) {
    std::vector<std::uint32_t>& next = result.successors[node];
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    for (const std::uint32_t other : next) {
      result.predecessors[other].push_back(node);
      ++result.num_predecessors[other];
    }
  }
  return result;
}

// The scheduler's view of memory: the nodes that still use each storage of the frame, and of the
// gradients if those share it.
class Memory {
 public:
  Memory(const ir::Graph& graph, const StorageMap& map, bool with_gradients)
      : map_(map),
        with_gradients_(with_gradients),
        touched_by_(map.storages.size()),
        touches_(graph.nodes.size()),
        remaining_(map.storages.size(), 0),
        is_allocated_(map.storages.size(), false) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      const ir::Node& node = graph.nodes[i];
      if (is_accumulate(node)) continue;
      for (const auto* list : {&node.inputs, &node.outputs})
        for (ir::ValueId value : *list) touch(static_cast<std::uint32_t>(i), value);
    }
  }

  bool with_gradients() const { return with_gradients_; }

  // A gradient counts for nothing where the node alone keeps its readers from running: it need not
  // stand.
  std::int64_t score(std::uint32_t node, const std::vector<std::uint32_t>& num_waited_for) const {
    std::int64_t freed = 0;
    for (std::int32_t storage : touches_[node]) {
      const Storage& entry = map_.storages[static_cast<std::size_t>(storage)];
      const std::vector<std::uint32_t>& users = touched_by_[static_cast<std::size_t>(storage)];
      const bool passes = entry.arena == spec::Arena::kGradient &&
                          std::all_of(users.begin(), users.end(), [&](std::uint32_t user) {
                            return user == node || num_waited_for[user] == 1;
                          });
      if (!is_allocated_[static_cast<std::size_t>(storage)] && !passes) freed -= entry.bytes;
      if (remaining_[static_cast<std::size_t>(storage)] == 1 && !entry.is_output)
        freed += entry.bytes;
    }
    return freed;
  }

  // Marks the node as run; calls f on nodes whose score may have changed.
  template <class F>
  void run(std::uint32_t node, const std::vector<bool>& done, const F& f) {
    for (std::int32_t storage : touches_[node]) {
      const auto s = static_cast<std::size_t>(storage);
      is_allocated_[s] = true;
      if (--remaining_[s] != 1) continue;
      for (std::uint32_t other : touched_by_[s])
        if (!done[other]) f(other);
    }
  }

 private:
  void touch(std::uint32_t node, ir::ValueId value) {
    const std::int32_t storage = map_.of_value[index(value)];
    const auto s = static_cast<std::size_t>(storage);
    if (const spec::Arena arena = map_.storages[s].arena;
        arena != spec::Arena::kFrame && !(with_gradients_ && arena == spec::Arena::kGradient))
      return;
    if (!touched_by_[s].empty() && touched_by_[s].back() == node) return;
    touched_by_[s].push_back(node);
    touches_[node].push_back(storage);
    ++remaining_[s];
  }

  const StorageMap& map_;
  bool with_gradients_;
  std::vector<std::vector<std::uint32_t>> touched_by_;  // by storage
  std::vector<std::vector<std::int32_t>> touches_;      // by node
  std::vector<std::int32_t> remaining_;
  std::vector<bool> is_allocated_;
};

// Whether it is an exchange of every micro-batch, in its forward or backward.
bool moves_rows(const ir::Node& node) { return ops::is_exchange(node) && !node.is_of_update(); }

// Which nodes go first so that rows move between ranks while others compute: those that lead to an
// exchange of their layer. Those that await one go last.
class ExchangeTurns {
 public:
  ExchangeTurns(const ir::Graph& graph, const Dependencies& waits)
      : graph_(graph),
        waits_(waits),
        leads_(graph.nodes.size(), false),
        is_under_way_(graph.nodes.size(), false) {
    for (std::uint32_t node = 0; node < graph.nodes.size(); ++node)
      if (is_exchange(node)) mark_leading(node);
  }

  int turn(std::uint32_t node) const {
    if (is_exchange(node)) return 0;
    const bool awaits = std::ranges::any_of(
        waits_.predecessors[node], [&](std::uint32_t other) { return is_under_way_[other]; });
    return awaits ? (leads_[node] ? 3 : 4) : leads_[node] ? 1 : 2;
  }

  // Calls f on nodes whose turn may have changed.
  template <class F>
  void run(std::uint32_t node, const F& f) {
    // Counts, which are few bytes, are there at once.
    is_under_way_[node] = is_exchange(node) &&
                          graph_.value(graph_.nodes[node].outputs[0]).type.dtype != DType::kInt32;
    for (const std::uint32_t other : waits_.predecessors[node]) {
      if (!is_under_way_[other]) continue;
      is_under_way_[other] = false;
      for (const std::uint32_t next : waits_.successors[other]) f(next);
    }
  }

 private:
  bool is_exchange(std::uint32_t node) const { return moves_rows(graph_.nodes[node]); }

  void mark_leading(std::uint32_t node) {
    for (const std::uint32_t other : waits_.predecessors[node]) {
      const ir::Tag &tag = graph_.nodes[node].tag, &its = graph_.nodes[other].tag;
      if (leads_[other] || its.layer != tag.layer || action_of(its.phase) != action_of(tag.phase))
        continue;
      leads_[other] = true;
      mark_leading(other);
    }
  }

  const ir::Graph& graph_;
  const Dependencies& waits_;
  std::vector<bool> leads_, is_under_way_;  // by node
};

// Turns of exchanges of the update, which are posted as soon as they can be, and of what reads
// parameters that ranks gather: after all else of the update, in the order of the posts. Updates of
// parameters that nothing reads there come last: they move while others are read.
class UpdateTurns {
 public:
  UpdateTurns(const ir::Graph& graph, const Dependencies& waits)
      : graph_(graph), waits_(waits), posted_(graph.nodes.size(), 0) {}

  // 0: it is none of these.
  int turn(std::uint32_t node) const {
    if (is_exchange(node)) return -1;
    if (graph_.nodes[node].tag.phase != ir::Phase::kUpdate) return 0;
    int last = 0;
    for (const std::uint32_t other : waits_.predecessors[node])
      last = std::max(last, posted_[other]);
    if (last > 0) return kUnread + last;
    return std::ranges::any_of(waits_.successors[node],
                               [&](std::uint32_t next) {
                                 return is_gather(next) && waits_.successors[next].empty();
                               })
               ? kUnread
               : 0;
  }

  void run(std::uint32_t node) {
    if (is_gather(node)) posted_[node] = ++num_posted_;
  }

 private:
  static constexpr int kUnread = 8;  // above all of ExchangeTurns

  bool is_exchange(std::uint32_t node) const {
    return ops::is_exchange(graph_.nodes[node]) && graph_.nodes[node].is_of_update();
  }
  bool is_gather(std::uint32_t node) const {
    return is_exchange(node) && graph_.nodes[node].op == &ops::kAllGather;
  }

  const ir::Graph& graph_;
  const Dependencies& waits_;
  std::vector<int> posted_;  // by node: a gathered parameter's place among them, from 1
  int num_posted_ = 0;
};

// Whose turns come before anything else.
enum class Turns : std::uint8_t { kNobodys, kOfUpdates, kOfAllExchanges };

// Kahn's algorithm, one action after the other. `memory` null: smallest id first.
Orders schedule(const ir::Graph& graph, Memory* memory, Turns by) {
  const bool overlaps = by == Turns::kOfAllExchanges;
  Dependencies waits = dependencies(graph);
  ExchangeTurns turns(graph, waits);
  UpdateTurns of_update(graph, waits);
  using Key = std::tuple<int, std::int64_t, std::uint32_t>;  // turn, minus the score, node
  std::vector<int> turn(graph.nodes.size(), 0);
  std::set<Key> ready[3];
  std::vector<std::int64_t> score(graph.nodes.size(), 0);
  std::vector<bool> done(graph.nodes.size(), false);
  const auto ready_set = [&](std::uint32_t node) -> std::set<Key>& {
    return ready[static_cast<int>(action_of(graph.nodes[node].tag.phase))];
  };
  const auto insert = [&](std::uint32_t node) {
    score[node] = memory ? memory->score(node, waits.num_predecessors) : 0;
    if (memory && memory->with_gradients() &&
        graph.nodes[node].tag.phase == ir::Phase::kRecompute) {
      std::int64_t best = 0;
      for (const std::uint32_t next : waits.successors[node])
        if (waits.num_predecessors[next] == 1)
          best = std::max(best, memory->score(next, waits.num_predecessors));
      score[node] += best;
    }
    if (by != Turns::kNobodys) turn[node] = of_update.turn(node);
    if (overlaps && turn[node] == 0) turn[node] = turns.turn(node);
    ready_set(node).insert({turn[node], -score[node], node});
  };
  const auto score_again = [&](std::uint32_t node) {
    if (done[node] || waits.num_predecessors[node] != 0) return;
    ready_set(node).erase({turn[node], -score[node], node});
    insert(node);
  };
  std::size_t num_called = 0;
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    if (is_accumulate(graph.nodes[i])) continue;
    ++num_called;
    if (waits.num_predecessors[i] == 0) insert(i);
  }
  Orders orders;
  std::size_t num_ordered = 0;
  for (spec::Action action : kActions) {
    std::set<Key>& queue = ready[static_cast<int>(action)];
    std::vector<ir::NodeId> order;
    while (!queue.empty()) {
      const std::uint32_t node = std::get<2>(*queue.begin());
      queue.erase(queue.begin());
      done[node] = true;
      order.push_back(ir::NodeId{node});
      if (memory) memory->run(node, done, score_again);
      if (overlaps) turns.run(node, score_again);
      of_update.run(node);
      for (std::uint32_t next : waits.successors[node]) {
        const std::uint32_t left = --waits.num_predecessors[next];
        if (left == 0) insert(next);
        if (left != 1 || !memory) continue;
        for (const std::uint32_t last : waits.predecessors[next]) score_again(last);
      }
    }
    num_ordered += order.size();
    if (!order.empty()) orders.emplace(action, std::move(order));
  }
  ANABATIC_CHECK(num_ordered == num_called,
                 "[order] {} of {} nodes depend on each other in a cycle: a reader of a state's "
                 "old value needs its new one",
                 num_called - num_ordered, num_called);
  return orders;
}

}  // namespace

Orders given_order(const ir::Graph& graph) { return schedule(graph, nullptr, Turns::kNobodys); }

Orders early_free_order(const ir::Graph& graph, const StorageMap& storages,
                        std::span<const std::int64_t> workspace_bytes, bool gradients_in_frame,
                        bool shortens_gradients) {
  Orders best;
  PeakBytes least;
  const auto consider = [&](Orders orders) {
    const PeakBytes peak =
        peak_frame_bytes(graph, storages, workspace_bytes, orders, gradients_in_frame);
    if (!best.empty() && !(peak < least)) return;
    best = std::move(orders);
    least = peak;
  };
  for (const bool with_gradients : {false, true}) {
    if (with_gradients && !shortens_gradients) continue;
    Memory memory(graph, storages, with_gradients);
    consider(schedule(graph, &memory, Turns::kOfUpdates));
  }
  consider(schedule(graph, nullptr, Turns::kOfUpdates));
  if (std::ranges::none_of(graph.nodes, moves_rows)) return best;
  Memory memory(graph, storages, shortens_gradients);
  const Orders overlapping = schedule(graph, &memory, Turns::kOfAllExchanges);
  const PeakBytes peak =
      peak_frame_bytes(graph, storages, workspace_bytes, overlapping, gradients_in_frame);
  const auto is_near = [](std::int64_t bytes, std::int64_t fewest) {
    return static_cast<double>(bytes) <= (1 + kOverlapSlack) * static_cast<double>(fewest);
  };
  return is_near(peak.all, least.all) && is_near(peak.backward, least.backward) ? overlapping
                                                                                : best;
}

std::vector<ir::NodeId> concatenate(const Orders& orders) {
  std::vector<ir::NodeId> result;
  for (const auto& [action, order] : orders)
    result.insert(result.end(), order.begin(), order.end());
  return result;
}

PeakBytes peak_frame_bytes(const ir::Graph& graph, const StorageMap& storages,
                           std::span<const std::int64_t> workspace_bytes, const Orders& orders,
                           bool gradients_in_frame) {
  const std::vector<ir::NodeId> order = concatenate(orders);
  const std::vector<Lifetime> lifetimes = analysis::liveness(graph, order);
  std::vector<std::int32_t> made_at(graph.values.size(), 0);
  for (std::size_t i = 0; i < order.size(); ++i)
    for (ir::ValueId output : graph.node(order[i]).outputs)
      made_at[index(output)] = static_cast<std::int32_t>(i);
  std::vector<analysis::LiveBytes> items;
  for (const Storage& storage : storages.storages) {
    const bool is_gradient = storage.arena == spec::Arena::kGradient;
    if (storage.arena != spec::Arena::kFrame && !(is_gradient && gradients_in_frame)) continue;
    Lifetime lifetime;
    for (ir::ValueId value : storage.values) {
      Lifetime of_value = lifetimes[index(value)];
      // `before` and `after` have no maker that is called.
      if (is_gradient && made_at[index(value)] == 0 && !of_value.empty())
        of_value.begin = of_value.end - 1;
      lifetime = join(lifetime, of_value);
    }
    items.push_back({lifetime, storage.bytes});
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto position = static_cast<std::int32_t>(i);
    items.push_back({{position, position + 1}, workspace_bytes[index(order[i])]});
  }
  PeakBytes peak{.all = analysis::peak_live_bytes(items)};
  const auto forward = orders.find(spec::Action::kForward);
  const auto backward =
      forward == orders.end() ? 0 : static_cast<std::int32_t>(forward->second.size());
  for (analysis::LiveBytes& item : items) {
    item.lifetime.begin = std::max(item.lifetime.begin, backward);
    item.lifetime.end = std::max(item.lifetime.end, backward);
  }
  peak.backward = analysis::peak_live_bytes(items);
  return peak;
}

}  // namespace anabatic::plan
