// SPDX-License-Identifier: Apache-2.0
#include "plan/offset_search.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "plan/canonical_search.h"
#include "plan/plan.h"

namespace anabatic::plan {
namespace {

constexpr std::int64_t kMaxTotalBytes = std::int64_t{1} << 62;

// The items that need room, their sizes rounded up, and what is known of their arena.
struct Problem {
  std::vector<LiveBytes> items;
  std::vector<std::int64_t> unrounded;  // sizes
  std::vector<std::size_t> source;      // of an item: its index in the caller's list
  std::int64_t bound = 0;               // most bytes alive at once
};

Problem pose(std::span<const LiveBytes> items, std::int64_t alignment) {
  ANABATIC_REQUIRE(alignment > 0, "[offsets] expected an alignment > 0, got {}", alignment);
  Problem problem;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& [lifetime, bytes] = items[i];
    ANABATIC_REQUIRE(bytes >= 0, "[offsets] expected sizes >= 0, got {} for item {}", bytes, i);
    ANABATIC_REQUIRE(lifetime.begin <= lifetime.end,
                     "[offsets] expected begin <= end, got [{}, {}) for item {}", lifetime.begin,
                     lifetime.end, i);
    const std::int64_t padding = bytes % alignment == 0 ? 0 : alignment - bytes % alignment;
    ANABATIC_REQUIRE(bytes <= kMaxTotalBytes - total && padding <= kMaxTotalBytes - total - bytes,
                     "[offsets] the sum of sizes exceeds 2^62 at item {}", i);
    total += bytes + padding;
    if (bytes == 0 || lifetime.empty()) continue;
    problem.items.push_back({lifetime, bytes + padding});
    problem.unrounded.push_back(bytes);
    problem.source.push_back(i);
  }
  // Lifetimes may begin anywhere; from here on they begin at 0.
  std::int32_t first = std::numeric_limits<std::int32_t>::max();
  for (const LiveBytes& item : problem.items) first = std::min(first, item.lifetime.begin);
  ANABATIC_REQUIRE(problem.items.empty() || first >= 0, "[offsets] expected begin >= 0, got {}",
                   first);
  problem.bound = analysis::peak_live_bytes(problem.items);
  return problem;
}

Placement in_callers_order(const Problem& problem, const Placement& placement, std::size_t count) {
  Placement result{std::vector<std::int64_t>(count, 0), placement.bytes};
  for (std::size_t i = 0; i < problem.items.size(); ++i)
    result.offsets[problem.source[i]] = placement.offsets[i];
  return result;
}

// Per item: the most bytes alive at once during its lifetime.
std::vector<std::int64_t> loads_of(const Problem& problem) {
  std::int32_t length = 0;
  for (const LiveBytes& item : problem.items) length = std::max(length, item.lifetime.end);
  // most[k][i]: of positions [i, i + 2^k).
  std::vector<std::vector<std::int64_t>> most(1);
  most[0].assign(static_cast<std::size_t>(length) + 1, 0);
  for (const auto& [lifetime, bytes] : problem.items) {
    most[0][static_cast<std::size_t>(lifetime.begin)] += bytes;
    most[0][static_cast<std::size_t>(lifetime.end)] -= bytes;
  }
  std::partial_sum(most[0].begin(), most[0].end(), most[0].begin());
  for (std::size_t half = 1; 2 * half <= most[0].size(); half *= 2) {
    const std::vector<std::int64_t>& from = most.back();
    std::vector<std::int64_t> to(from.size() - half);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(from[i], from[i + half]);
    most.push_back(std::move(to));
  }
  std::vector<std::int64_t> result;
  for (const LiveBytes& item : problem.items) {
    const auto begin = static_cast<std::size_t>(item.lifetime.begin);
    const auto end = static_cast<std::size_t>(item.lifetime.end);
    const auto level = static_cast<std::size_t>(std::bit_width(end - begin) - 1);
    result.push_back(std::max(most[level][begin], most[level][end - (std::size_t{1} << level)]));
  }
  return result;
}

// Greedy placements that learn: items that stick out above `goal` come earlier the next time.
class Incumbent {
 public:
  Incumbent(const Problem& problem, std::int64_t goal, SearchBudget& budget)
      : problem_(problem), goal_(goal), budget_(budget), order_(problem.items.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }

  const Placement& best() const { return best_; }
  bool is_good() const { return !best_order_.empty() && best_.bytes <= goal_; }

  // By size (as place_by_size does), area, lifetime and load.
  void try_orders() {
    const auto& items = problem_.items;
    const auto length = [&](std::size_t i) {
      return static_cast<double>(items[i].lifetime.end - items[i].lifetime.begin);
    };
    const auto bytes = [&](std::size_t i) { return static_cast<double>(items[i].bytes); };
    const std::vector<std::int64_t> loads = loads_of(problem_);
    try_sorted([&](std::size_t i) { return std::pair(problem_.unrounded[i], length(i)); });
    try_sorted([&](std::size_t i) { return std::pair(bytes(i) * length(i), bytes(i)); });
    try_sorted([&](std::size_t i) { return std::pair(length(i), bytes(i)); });
    try_sorted([&](std::size_t i) { return std::pair(static_cast<double>(loads[i]), bytes(i)); });
  }

  void learn(std::int64_t max_steps, int max_rounds) {
    const std::int64_t until = budget_.steps - std::min(budget_.steps, max_steps);
    order_ = best_order_;
    Placement placement = best_;
    for (int round = 0; round < max_rounds && !is_good(); ++round) {
      if (budget_.steps <= until || budget_.is_spent()) return;
      std::vector<std::pair<double, std::size_t>> ranks;
      for (std::size_t rank = 0; rank < order_.size(); ++rank) {
        const std::size_t i = order_[rank];
        const bool sticks_out = placement.offsets[i] + problem_.items[i].bytes > goal_;
        ranks.emplace_back(static_cast<double>(rank) * (sticks_out ? 0.5 : 1), i);
      }
      std::stable_sort(ranks.begin(), ranks.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      for (std::size_t rank = 0; rank < order_.size(); ++rank) order_[rank] = ranks[rank].second;
      placement = try_order();
    }
  }

  void offer(const std::vector<std::int64_t>& offsets) {
    Placement found{offsets};
    for (std::size_t i = 0; i < offsets.size(); ++i)
      found.bytes = std::max(found.bytes, offsets[i] + problem_.items[i].bytes);
    if (found.bytes < best_.bytes) best_ = std::move(found);
  }

 private:
  template <class Key>
  void try_sorted(Key key) {
    if (is_good() || (!best_order_.empty() && budget_.is_late())) return;
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
    try_order();
  }

  Placement try_order() {
    std::int64_t comparisons = static_cast<std::int64_t>(order_.size());
    Placement placement = place_in_order(problem_.items, order_, &comparisons);
    budget_.steps -= comparisons;
    if (best_order_.empty() || placement.bytes < best_.bytes) {
      best_ = placement;
      best_order_ = order_;
    }
    return placement;
  }

  const Problem& problem_;
  std::int64_t goal_;
  SearchBudget& budget_;
  std::vector<std::size_t> order_, best_order_;
  Placement best_;
};

SearchBudget budget_of(const SearchLimits& limits) {
  SearchBudget budget{.steps = limits.steps};
  if (limits.seconds > 0)
    budget.deadline = std::chrono::steady_clock::now() +
                      std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                          std::chrono::duration<double>(limits.seconds));
  return budget;
}

// Capacities from the goal towards the incumbent until one can be met.
void search_below(const Problem& problem, std::int64_t goal, std::int64_t alignment,
                  SearchBudget& budget, Incumbent& incumbent) {
  // One dive asks for about this many steps.
  std::int64_t pairs = 0;
  for (const LiveBytes& item : problem.items) pairs += item.lifetime.end - item.lifetime.begin;
  if (pairs > budget.steps / 4) return;
  CanonicalSearch search(problem.items);
  const std::int64_t gap = incumbent.best().bytes - goal;
  for (std::int64_t part : {0, 1, 2, 4}) {
    const std::int64_t capacity = goal + gap / 8 * part / alignment * alignment;
    const auto outcome = search.run(capacity, budget.steps / (part == 0 ? 2 : 3), budget);
    if (outcome == CanonicalSearch::Outcome::kPlaced) return incumbent.offer(search.offsets());
  }
}

}  // namespace

Placement place_by_search(std::span<const LiveBytes> items, const SearchLimits& limits) {
  const Problem problem = pose(items, kAlignmentBytes);
  if (problem.items.empty()) return in_callers_order(problem, {}, items.size());
  const auto spare = static_cast<std::int64_t>(limits.slack * static_cast<double>(problem.bound));
  const std::int64_t goal = problem.bound + spare / kAlignmentBytes * kAlignmentBytes;
  SearchBudget budget = budget_of(limits);
  Incumbent incumbent(problem, goal, budget);
  incumbent.try_orders();
  incumbent.learn(budget.steps / 16, 100);
  if (!incumbent.is_good() && !budget.is_spent())
    search_below(problem, goal, kAlignmentBytes, budget, incumbent);
  return in_callers_order(problem, incumbent.best(), items.size());
}

Fit place_within(std::span<const LiveBytes> items, std::int64_t capacity, std::int64_t alignment,
                 const SearchLimits& limits) {
  const Problem problem = pose(items, alignment);
  if (problem.bound > capacity) return {.is_impossible = true};
  if (problem.items.empty()) return {.placement = in_callers_order(problem, {}, items.size())};
  SearchBudget budget = budget_of(limits);
  Incumbent incumbent(problem, capacity, budget);
  incumbent.try_orders();
  incumbent.learn(budget.steps / 4, 20);
  if (!incumbent.is_good()) {
    CanonicalSearch search(problem.items);
    const auto outcome = search.run(capacity, budget.steps, budget);
    if (outcome == CanonicalSearch::Outcome::kImpossible) return {.is_impossible = true};
    if (outcome == CanonicalSearch::Outcome::kGaveUp) return {};
    incumbent.offer(search.offsets());
  }
  return {.placement = in_callers_order(problem, incumbent.best(), items.size())};
}

}  // namespace anabatic::plan
