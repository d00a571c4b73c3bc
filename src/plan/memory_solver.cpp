// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_solver.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <span>
#include <utility>

#include "base/error.h"

namespace anabatic::plan {
namespace {

constexpr std::size_t kMostExactItems = 20;
constexpr std::size_t kMostExchangedItems = 64;  // pairs are quadratic, threes cubic
constexpr double kFreeSeconds = 1e-9;            // smaller costs count as this
// Limits of trades: items tried in turn, items tried together, and misfits that end a trade.
constexpr std::size_t kMostTraded = 16, kMostTradedTogether = 3, kMostMisses = 6;
// In long menus an item is taken if its ratio is within this share of the best: most items are of
// one kind, one for each layer, and every one that is taken lowers the others' ratio a little.
constexpr double kAsGood = 0.02;
// Evaluations of trades and exchanges together, which take tens of microseconds each.
constexpr int kMostTried = 4000;

// By more than rounding. Seconds may be below zero: some choices save time.
bool is_shorter(const MenuOutcome& one, const MenuOutcome& other) {
  return one.seconds < other.seconds - 1e-9 * std::abs(other.seconds);
}

class Search {
 public:
  Search(const std::vector<ItemRule>& rules, const EvaluateMenu& evaluate,
         const Alternatives& alternatives, const std::vector<bool>& taken)
      : rules_(rules), evaluate_(evaluate), alternatives_(alternatives) {
    now_.chosen.assign(rules.size(), false);
    for (std::size_t i = 0; i < rules.size(); ++i)
      now_.chosen[i] = rules[i] == ItemRule::kTake ||
                       (!taken.empty() && taken[i] && rules[i] == ItemRule::kFree);
    now_.outcome = evaluate(now_.chosen);
  }

  MenuChoice run() {
    add();
    now_.holds = now_.outcome.excess <= 0;
    if (!now_.holds) return now_;
    remove();
    while (trade()) continue;
    if (rules_.size() <= kMostExchangedItems)
      while (exchange()) remove();
    return now_;
  }

 private:
  bool is_free(std::size_t i) const { return rules_[i] == ItemRule::kFree; }

  MenuOutcome flipped(std::initializer_list<std::size_t> items) {
    return flipped(std::span(items.begin(), items.size()));
  }
  void flip(std::initializer_list<std::size_t> items, const MenuOutcome& outcome) {
    flip(std::span(items.begin(), items.size()), outcome);
  }
  MenuOutcome flipped(std::span<const std::size_t> items) {
    for (const std::size_t i : items) now_.chosen[i] = !now_.chosen[i];
    const MenuOutcome outcome = evaluate_(now_.chosen);
    for (const std::size_t i : items) now_.chosen[i] = !now_.chosen[i];
    return outcome;
  }

  void flip(std::span<const std::size_t> items, const MenuOutcome& outcome) {
    for (const std::size_t i : items) now_.chosen[i] = !now_.chosen[i];
    now_.outcome = outcome;
  }

  double ratio(const MenuOutcome& outcome) const {
    return (now_.outcome.excess - outcome.excess) /
           std::max(outcome.seconds - now_.outcome.seconds, kFreeSeconds);
  }

  // Lazily: an item's ratio is asked again only when it comes to the top, for gains mostly shrink.
  void add() {
    struct Entry {
      double ratio;
      std::size_t item, asked_at;
      bool operator<(const Entry& other) const {
        return ratio != other.ratio ? ratio < other.ratio : item > other.item;
      }
    };
    std::priority_queue<Entry> queue;
    for (std::size_t i = 0; i < rules_.size(); ++i)
      if (is_free(i) && !now_.chosen[i])
        queue.push({std::numeric_limits<double>::infinity(), i, 0});
    std::vector<std::size_t> idle;  // gained nothing when asked; others may change that
    std::size_t taken = 1, idle_asked_at = taken;
    const double as_good = rules_.size() > kLongMenu ? 1 + kAsGood : 1;
    while (now_.outcome.excess > 0) {
      if (queue.empty()) {
        if (std::exchange(idle_asked_at, taken) == taken) return;
        for (const std::size_t item : std::exchange(idle, {}))
          queue.push({std::numeric_limits<double>::infinity(), item, 0});
        continue;
      }
      const Entry top = queue.top();
      queue.pop();
      const MenuOutcome outcome = flipped({top.item});
      const double now = ratio(outcome);
      if (now <= 0) {
        idle.push_back(top.item);
      } else if (top.asked_at != taken && !queue.empty() && as_good * now < queue.top().ratio) {
        queue.push({now, top.item, taken});
      } else {
        flip({top.item}, outcome);
        ++taken;
      }
    }
  }

  void remove() {
    std::vector<std::size_t> items;
    for (std::size_t i = 0; i < rules_.size(); ++i)
      if (is_free(i) && now_.chosen[i]) items.push_back(i);
    std::vector<double> saves(rules_.size(), 0);
    for (const std::size_t i : items) saves[i] = now_.outcome.seconds - flipped({i}).seconds;
    std::stable_sort(items.begin(), items.end(),
                     [&](std::size_t a, std::size_t b) { return saves[a] > saves[b]; });
    for (const std::size_t i : items)
      if (const MenuOutcome outcome = flipped({i});
          outcome.excess <= 0 && outcome.seconds <= now_.outcome.seconds)
        flip({i}, outcome);
  }

  // With the budget kept and seconds saved: one out for one in, then two for one or one for two.
  bool exchange() { return exchange_pairs() || exchange_threes(); }

  bool exchange_pairs() {
    for (std::size_t out = 0; out < rules_.size(); ++out)
      for (std::size_t in = 0; in < rules_.size(); ++in)
        if (may_exchange(out, in) && try_exchange({out, in})) return true;
    return false;
  }

  bool exchange_threes() {
    for (std::size_t out = 0; out < rules_.size(); ++out)
      for (std::size_t in = 0; in < rules_.size(); ++in) {
        if (!may_exchange(out, in)) continue;
        for (std::size_t other = out + 1; other < rules_.size(); ++other)
          if (may_exchange(other, in) && try_exchange({out, in, other})) return true;
        for (std::size_t other = in + 1; other < rules_.size(); ++other)
          if (may_exchange(out, other) && try_exchange({out, in, other})) return true;
      }
    return false;
  }

  bool may_exchange(std::size_t out, std::size_t in) const {
    return num_tried_ < kMostTried && is_free(out) && is_free(in) && now_.chosen[out] &&
           !now_.chosen[in];
  }

  // Items that flip together, and what that does: seconds and bytes of the peak, one saved and the
  // other lost.
  struct Move {
    std::vector<std::size_t> items;
    double seconds;
    std::int64_t bytes;
    double ratio() const { return seconds / static_cast<double>(std::max<std::int64_t>(bytes, 1)); }
  };

  // A few in, and out what their bytes leave room for, by seconds a byte of the peak; out as such,
  // or for what else may be done about the same bytes.
  bool trade() {
    std::vector<Move> in, out;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (!is_free(i)) continue;
      if (!now_.chosen[i]) {
        const MenuOutcome other = tried({i});
        if (other.peak_bytes < now_.outcome.peak_bytes)
          in.push_back({{i},
                        other.seconds - now_.outcome.seconds,
                        now_.outcome.peak_bytes - other.peak_bytes});
        continue;
      }
      std::vector<std::size_t> items{i};
      const auto consider = [&] {
        const MenuOutcome other = tried(items);
        out.push_back({items, now_.outcome.seconds - other.seconds,
                       other.peak_bytes - now_.outcome.peak_bytes});
      };
      consider();
      if (alternatives_.empty()) continue;
      for (const std::size_t other : alternatives_[i])
        if (is_free(other) && !now_.chosen[other]) items.push_back(other);
      if (items.size() > 1) consider();
    }
    std::stable_sort(in.begin(), in.end(),
                     [](const Move& a, const Move& b) { return a.ratio() < b.ratio(); });
    std::stable_sort(out.begin(), out.end(),
                     [](const Move& a, const Move& b) { return a.ratio() > b.ratio(); });
    if (in.size() > kMostTraded) in.resize(kMostTraded);
    // Several in at once where the bytes of one leave room for no whole number of what goes out.
    const std::vector<bool> listed = now_.chosen;
    bool any = false;
    for (std::size_t count = 1; count <= std::min(kMostTradedTogether, in.size()); ++count)
      for (std::size_t first = 0; first + count <= in.size(); ++first)
        any |= trade(std::span(in).subspan(first, count), out, listed);
    return any;
  }

  // `listed`: what was chosen when the moves were priced; those of items that have gone another way
  // since are left.
  bool trade(std::span<const Move> in, std::span<const Move> out, const std::vector<bool>& listed) {
    const auto is_open = [&](const Move& move) {
      return std::all_of(move.items.begin(), move.items.end(),
                         [&](std::size_t item) { return now_.chosen[item] == listed[item]; });
    };
    if (num_tried_ >= kMostTried || !std::all_of(in.begin(), in.end(), is_open)) return false;
    const MenuChoice before = now_;
    for (const Move& move : in) flip(move.items, tried(move.items));
    std::size_t misses = 0;
    for (const Move& other : out) {
      if (misses == kMostMisses || num_tried_ >= kMostTried) break;
      if (!is_open(other)) continue;
      const MenuOutcome outcome = tried(other.items);
      if (outcome.excess <= 0 && outcome.seconds <= now_.outcome.seconds)
        flip(other.items, outcome);
      else
        ++misses;
    }
    if (is_shorter(now_.outcome, before.outcome)) return true;
    now_ = before;
    return false;
  }

  MenuOutcome tried(std::span<const std::size_t> items) {
    ++num_tried_;
    return flipped(items);
  }
  MenuOutcome tried(std::initializer_list<std::size_t> items) {
    return tried(std::span(items.begin(), items.size()));
  }

  bool try_exchange(std::initializer_list<std::size_t> items) {
    const MenuOutcome outcome = tried(items);
    if (outcome.excess > 0 || !is_shorter(outcome, now_.outcome)) return false;
    flip(items, outcome);
    return true;
  }

  const std::vector<ItemRule>& rules_;
  const EvaluateMenu& evaluate_;
  const Alternatives& alternatives_;
  MenuChoice now_;
  int num_tried_ = 0;  // by trades and exchanges
};

class Exact {
 public:
  Exact(const std::vector<ItemRule>& rules, const EvaluateMenu& evaluate) : evaluate_(evaluate) {
    chosen_.assign(rules.size(), false);
    for (std::size_t i = 0; i < rules.size(); ++i) {
      chosen_[i] = rules[i] == ItemRule::kTake;
      if (rules[i] == ItemRule::kFree) free_.push_back(i);
    }
    ANABATIC_REQUIRE(free_.size() <= kMostExactItems,
                     "[memory solver] expected at most {} free items, got {}", kMostExactItems,
                     free_.size());
  }

  MenuChoice run() {
    const MenuOutcome none = evaluate_(chosen_);
    least_rest_.assign(free_.size() + 1, 0);
    for (std::size_t depth = free_.size(); depth-- > 0;) {
      chosen_[free_[depth]] = true;
      const double alone = evaluate_(chosen_).seconds - none.seconds;
      chosen_[free_[depth]] = false;
      least_rest_[depth] = least_rest_[depth + 1] + std::min(0.0, alone);
    }
    consider(none);
    if (none.excess <= 0 || can_hold(0)) branch(0, none);
    return best_;
  }

 private:
  // Items before `depth` are settled; the rest is left out in chosen_, whose outcome is `now`.
  void branch(std::size_t depth, const MenuOutcome& now) {
    if (best_.holds && now.seconds + least_rest_[depth] >= best_.outcome.seconds) return;
    if (depth == free_.size()) return;
    chosen_[free_[depth]] = true;
    const MenuOutcome taken = evaluate_(chosen_);
    consider(taken);
    branch(depth + 1, taken);
    chosen_[free_[depth]] = false;
    if (now.excess <= 0 || can_hold(depth + 1)) branch(depth + 1, now);
  }

  void consider(const MenuOutcome& outcome) {
    if (is_better(outcome)) best_ = {chosen_, outcome, outcome.excess <= 0};
  }

  bool is_better(const MenuOutcome& outcome) const {
    if (best_.chosen.empty()) return true;
    if ((outcome.excess <= 0) != best_.holds) return outcome.excess <= 0;
    return best_.holds ? outcome.seconds < best_.outcome.seconds
                       : outcome.excess < best_.outcome.excess;
  }

  // Whether it fits with all unsettled items taken. If not, no fewer items fit, and the excess is
  // the least possible.
  bool can_hold(std::size_t depth) {
    const std::vector<bool> settled = chosen_;
    for (std::size_t i = depth; i < free_.size(); ++i) chosen_[free_[i]] = true;
    const MenuOutcome all = evaluate_(chosen_);
    consider(all);
    chosen_ = settled;
    return all.excess <= 0;
  }

  const EvaluateMenu& evaluate_;
  std::vector<std::size_t> free_;
  std::vector<bool> chosen_;
  std::vector<double> least_rest_;  // by depth: seconds that items from there on save at most
  MenuChoice best_;
};

}  // namespace

MenuChoice choose_by_ratio(const std::vector<ItemRule>& rules, const EvaluateMenu& evaluate,
                           const Alternatives& alternatives, const std::vector<bool>& taken) {
  return Search(rules, evaluate, alternatives, taken).run();
}

MenuChoice choose_exactly(const std::vector<ItemRule>& rules, const EvaluateMenu& evaluate) {
  return Exact(rules, evaluate).run();
}

}  // namespace anabatic::plan
