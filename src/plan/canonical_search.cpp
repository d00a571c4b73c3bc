// SPDX-License-Identifier: Apache-2.0
#include "plan/canonical_search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "base/philox.h"

namespace anabatic::plan {
namespace {

constexpr std::int64_t kNoOffset = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxPairs = std::int64_t{1}
                                   << 27;  // of item and section: 512 MiB of indices
constexpr std::int64_t kStepsPerLook = std::int64_t{1} << 22;  // at the clock
constexpr int kNumOrders = 4;

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// The positions at which some item begins or ends, ascending.
std::vector<std::int32_t> edges(std::span<const analysis::LiveBytes> items) {
  std::vector<std::int32_t> result;
  result.reserve(2 * items.size());
  for (const analysis::LiveBytes& item : items) {
    result.push_back(item.lifetime.begin);
    result.push_back(item.lifetime.end);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

// Begins of the slices whose items no neighbour holds as well: after a begin, before an end.
std::vector<std::int32_t> maximal_slices(std::span<const analysis::LiveBytes> items) {
  const std::vector<std::int32_t> times = edges(items);
  std::vector<char> begins(times.size(), 0), ends(times.size(), 0);
  const auto rank = [&](std::int32_t time) {
    return static_cast<std::size_t>(std::lower_bound(times.begin(), times.end(), time) -
                                    times.begin());
  };
  for (const analysis::LiveBytes& item : items) {
    begins[rank(item.lifetime.begin)] = 1;
    ends[rank(item.lifetime.end)] = 1;
  }
  std::vector<std::int32_t> result;
  bool has_begun = false;
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (ends[i] && has_begun) {
      result.push_back(times[i - 1]);
      has_begun = false;
    }
    if (begins[i]) has_begun = true;
  }
  return result;
}

// 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ... from index 1 on (Luby, Sinclair, Zuckerman 1993): within a
// logarithm of the best lengths of restarts, whatever the lengths of lucky dives are.
std::int64_t luby(std::int64_t index) {
  std::int64_t last = 1;  // of the shortest whole run 2^k - 1 that holds index
  while (last < index) last = 2 * last + 1;
  return last == index ? (last + 1) / 2 : luby(index - last / 2);
}

}  // namespace

CanonicalSearch::CanonicalSearch(std::span<const analysis::LiveBytes> items) {
  build_sections(items);
  if (is_too_large()) return;
  link_twins();
  lower_.resize(items_.size());
  is_placed_.resize(items_.size());
  priority_.resize(items_.size());
}

void CanonicalSearch::build_sections(std::span<const analysis::LiveBytes> items) {
  const std::vector<std::int32_t> slices = maximal_slices(items);
  const auto section_of = [&](std::int32_t time) {
    return static_cast<std::int32_t>(std::lower_bound(slices.begin(), slices.end(), time) -
                                     slices.begin());
  };
  std::int64_t num_pairs = 0;
  for (const analysis::LiveBytes& item : items) {
    items_.push_back({section_of(item.lifetime.begin), section_of(item.lifetime.end), item.bytes});
    num_pairs += items_.back().last - items_.back().first;
  }
  if (num_pairs > kMaxPairs) return;
  sections_.resize(slices.size());
  for (std::size_t i = 0; i < items_.size(); ++i)
    for (std::int32_t s = items_[i].first; s < items_[i].last; ++s) {
      sections_[at(s)].items.push_back(static_cast<std::int32_t>(i));
      sections_[at(s)].load += items_[i].bytes;
    }
}

void CanonicalSearch::link_twins() {
  std::map<std::tuple<std::int32_t, std::int32_t, std::int64_t>, std::int32_t> last;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    const auto index = static_cast<std::int32_t>(i);
    const auto [found, is_new] = last.try_emplace({item.first, item.last, item.bytes}, index);
    if (is_new) continue;
    item.twin_before = found->second;
    items_[at(found->second)].twin_after = index;
    found->second = index;
  }
}

void CanonicalSearch::reset() {
  std::fill(lower_.begin(), lower_.end(), 0);
  std::fill(is_placed_.begin(), is_placed_.end(), 0);
  for (Section& section : sections_) {
    section.floor = 0;
    section.left = section.load;
    section.num_left = static_cast<std::int32_t>(section.items.size());
    section.is_queued = false;
    section.failures = 1 + 0.9 * (section.failures - 1);
  }
  changes_.clear();
  goals_.clear();
  decisions_.clear();
  queue_.clear();
}

// Which candidate comes first: long ones, those of large area, large ones, a mixture; from the
// second cycle on with noise.
void CanonicalSearch::set_priorities(int round) {
  const auto stream = static_cast<std::uint64_t>(round);
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const double length = items_[i].last - items_[i].first;
    const auto bytes = static_cast<double>(items_[i].bytes);
    const auto noise = [&](std::uint64_t seed) { return random_uniform(seed, stream, i); };
    switch (round % kNumOrders) {
      case 0:
        priority_[i] = length * (1 + bytes / static_cast<double>(capacity_));
        break;
      case 1:
        priority_[i] = length * bytes;
        break;
      case 2:
        priority_[i] = bytes * (1 + length / static_cast<double>(sections_.size()));
        break;
      default:
        priority_[i] = length * bytes * (0.5 + noise(1));
    }
    if (round >= kNumOrders) priority_[i] *= 0.8 + 0.4 * noise(2);
  }
}

CanonicalSearch::Outcome CanonicalSearch::run(std::int64_t capacity, std::int64_t max_steps,
                                              SearchBudget& budget) {
  if (items_.empty()) return Outcome::kPlaced;
  if (is_too_large()) return Outcome::kGaveUp;
  capacity_ = capacity;
  for (Section& section : sections_) {
    if (section.load > capacity) return Outcome::kImpossible;
    section.failures = 1;
  }
  const std::int64_t spare = budget.steps - std::min(budget.steps, max_steps);
  budget.steps -= spare;
  const auto shortest = static_cast<std::int64_t>(2 * items_.size());
  Outcome outcome = Outcome::kGaveUp;
  for (int round = 0; outcome == Outcome::kGaveUp && !budget.is_spent(); ++round) {
    lowest_first_ = round / kNumOrders % 2 == 1;
    set_priorities(round);
    reset();
    outcome = dive(shortest * luby(round / kNumOrders + 1), budget);
  }
  budget.steps += spare;
  return outcome;
}

CanonicalSearch::Outcome CanonicalSearch::dive(std::int64_t max_nodes, SearchBudget& budget) {
  const auto num_sections = static_cast<std::int32_t>(sections_.size());
  std::int32_t goal = split({0, num_sections, -1, -1}, 0, num_sections);
  std::int64_t since_look = kStepsPerLook;
  for (std::int64_t node = 0; goal >= 0; ++node) {
    steps_ = 1;
    const std::int32_t section = choose_section(goals_[at(goal)].first, goals_[at(goal)].last);
    const std::int32_t item = choose_item(section);
    decisions_.push_back({changes_.size(), goals_.size(), goal, item});
    bool fits = place(item);
    if (fits)
      goal = split({goals_[at(goal)].first, goals_[at(goal)].last,
                    static_cast<std::int32_t>(decisions_.size()) - 1, goals_[at(goal)].next},
                   items_[at(item)].first, items_[at(item)].last);
    while (!fits) {
      const Decision decision = decisions_.back();
      decisions_.pop_back();
      undo(decision.num_changes);
      goals_.resize(decision.num_goals);
      goal = decision.goal;
      fits = forbid(decision.item);
      if (fits) break;
      const std::int32_t owner = goals_[at(goal)].owner;
      if (owner < 0) return Outcome::kImpossible;
      decisions_.resize(at(owner) + 1);
    }
    budget.steps -= steps_;
    since_look += steps_;
    if (goal < 0) break;
    if (node >= max_nodes || budget.steps <= 0) return Outcome::kGaveUp;
    if (since_look < kStepsPerLook) continue;
    if (budget.is_spent()) return Outcome::kGaveUp;
    since_look = 0;
  }
  return Outcome::kPlaced;
}

// Replaces a goal by its independent parts, of which new ones begin only in (first, last); returns
// the first of them.
std::int32_t CanonicalSearch::split(Goal goal, std::int32_t first, std::int32_t last) {
  std::int32_t next = goal.next;
  for (std::int32_t end = goal.last; end > goal.first;) {
    if (sections_[at(end - 1)].num_left == 0) {
      --end;
      continue;
    }
    std::int32_t begin = end - 1;
    while (begin > goal.first && sections_[at(begin - 1)].num_left > 0 &&
           (begin <= first || begin >= last || joins_left(begin)))
      --begin;
    goals_.push_back({begin, end, goal.owner, next});
    next = static_cast<std::int32_t>(goals_.size()) - 1;
    end = begin;
  }
  steps_ += goal.last - goal.first;
  return next;
}

bool CanonicalSearch::joins_left(std::int32_t section) const {
  for (std::int32_t i : sections_[at(section)].items)
    if (!is_placed_[at(i)] && items_[at(i)].first < section) return true;
  return false;
}

// Among equal items the one with the lower index is at the lower offset.
bool CanonicalSearch::is_candidate(std::int32_t item, std::int64_t floor) const {
  if (is_placed_[at(item)] || lower_[at(item)] != floor) return false;
  const std::int32_t before = items_[at(item)].twin_before;
  return before < 0 || is_placed_[at(before)];
}

// A section of a valley: a run of equal floors between higher ones. Every item that may lie at the
// valley's floor ends within it, so nothing can come to lie beneath. A part always has a valley.
std::int32_t CanonicalSearch::choose_section(std::int32_t first, std::int32_t last) {
  std::int32_t best = -1;
  std::int64_t best_floor = 0;
  double best_score = 0;
  for (std::int32_t begin = first, end; begin < last; begin = end) {
    const std::int64_t floor = sections_[at(begin)].floor;
    for (end = begin + 1; end < last && sections_[at(end)].floor == floor;) ++end;
    const bool is_valley = (begin == first || sections_[at(begin - 1)].floor > floor) &&
                           (end == last || sections_[at(end)].floor > floor);
    if (!is_valley || (lowest_first_ && best >= 0 && floor > best_floor)) continue;
    for (std::int32_t s = begin; s < end; ++s) {
      const Section& section = sections_[at(s)];
      double count = floor + section.left < capacity_ ? 0.5 : 0;  // the floor may rise
      for (std::int32_t i : section.items) count += is_candidate(i, floor);
      steps_ += static_cast<std::int64_t>(section.items.size());
      const double score = count / section.failures;
      if (best >= 0 && score >= best_score && !(lowest_first_ && floor < best_floor)) continue;
      best = s;
      best_floor = floor;
      best_score = score;
    }
  }
  return best;
}

std::int32_t CanonicalSearch::choose_item(std::int32_t section) const {
  const std::int64_t floor = sections_[at(section)].floor;
  std::int32_t best = -1;
  for (std::int32_t i : sections_[at(section)].items)
    if (is_candidate(i, floor) && (best < 0 || priority_[at(i)] > priority_[at(best)])) best = i;
  return best;
}

bool CanonicalSearch::place(std::int32_t item) {
  const Item& placed = items_[at(item)];
  is_placed_[at(item)] = 1;
  changes_.push_back({Field::kPlaced, item, 0});
  for (std::int32_t s = placed.first; s < placed.last; ++s) {
    Section& section = sections_[at(s)];
    set_floor(s, lower_[at(item)] + placed.bytes);
    section.left -= placed.bytes;
    --section.num_left;
    enqueue(s);
  }
  return propagate();
}

// The item does not lie at its lowest offset, so it lies on an item that is yet to be placed.
bool CanonicalSearch::forbid(std::int32_t item) {
  const Item& forbidden = items_[at(item)];
  std::int64_t lower = kNoOffset;
  for (std::int32_t s = forbidden.first; s < forbidden.last; ++s) {
    steps_ += static_cast<std::int64_t>(sections_[at(s)].items.size());
    for (std::int32_t i : sections_[at(s)].items)
      if (!is_placed_[at(i)] && i != item)
        lower = std::min(lower, lower_[at(i)] + items_[at(i)].bytes);
  }
  if (lower == kNoOffset) return false;
  for (std::int32_t i = item; i >= 0; i = items_[at(i)].twin_after) {
    if (lower_[at(i)] < lower) set_lower(i, lower);
    lower += forbidden.bytes;
  }
  for (std::int32_t s = forbidden.first; s < forbidden.last; ++s) enqueue(s);
  return propagate();
}

// Floors lift items and items lift floors until nothing moves.
bool CanonicalSearch::propagate() {
  bool fits = true;
  for (std::size_t head = 0; head < queue_.size(); ++head) {
    const std::int32_t s = queue_[head];
    Section& section = sections_[at(s)];
    section.is_queued = false;
    if (!fits || section.num_left == 0) continue;
    std::int64_t lowest = kNoOffset;
    for (std::int32_t i : section.items)
      if (!is_placed_[at(i)]) lowest = std::min(lowest, lower_[at(i)]);
    if (lowest > section.floor) set_floor(s, lowest);
    fits = raise_section(section);
    if (!fits) section.failures += 1;
  }
  queue_.clear();
  return fits;
}

bool CanonicalSearch::raise_section(Section& section) {
  const std::int64_t floor = section.floor;
  steps_ += 2 * static_cast<std::int64_t>(section.items.size());
  if (floor > capacity_ - section.left) return false;
  bool has_higher = false;
  for (std::int32_t i : section.items) {
    if (is_placed_[at(i)]) continue;
    if (lower_[at(i)] > floor) has_higher = true;
    if (lower_[at(i)] >= floor) continue;
    set_lower(i, floor);
    steps_ += items_[at(i)].last - items_[at(i)].first;
    for (std::int32_t s = items_[at(i)].first; s < items_[at(i)].last; ++s)
      if (sections_[at(s)].floor < floor) enqueue(s);
  }
  return !has_higher || fits_by_release(section);
}

// Items as jobs on one machine, released at their lowest offsets: the earliest end of all. Only
// those above the floor need an order, and only where the highest is not low enough for any.
bool CanonicalSearch::fits_by_release(const Section& section) {
  steps_ += 4 * static_cast<std::int64_t>(section.num_left);
  released_.clear();
  std::int64_t end = section.floor, highest = section.floor;
  for (std::int32_t i : section.items) {
    if (is_placed_[at(i)]) continue;
    const std::int64_t lower = lower_[at(i)], bytes = items_[at(i)].bytes;
    if (lower <= section.floor) {
      end += bytes;
    } else {
      released_.emplace_back(lower, bytes);
      highest = std::max(highest, lower);
    }
  }
  if (highest + section.left <= capacity_) return true;
  std::sort(released_.begin(), released_.end());
  for (const auto& [lower, bytes] : released_) end = std::max(end, lower) + bytes;
  return end <= capacity_;
}

void CanonicalSearch::set_floor(std::int32_t section, std::int64_t value) {
  changes_.push_back({Field::kFloor, section, sections_[at(section)].floor});
  sections_[at(section)].floor = value;
}

void CanonicalSearch::set_lower(std::int32_t item, std::int64_t value) {
  changes_.push_back({Field::kLower, item, lower_[at(item)]});
  lower_[at(item)] = value;
}

void CanonicalSearch::enqueue(std::int32_t section) {
  if (sections_[at(section)].is_queued) return;
  sections_[at(section)].is_queued = true;
  queue_.push_back(section);
}

void CanonicalSearch::undo(std::size_t num_changes) {
  while (changes_.size() > num_changes) {
    const Change change = changes_.back();
    changes_.pop_back();
    if (change.field == Field::kFloor) {
      sections_[at(change.index)].floor = change.before;
    } else if (change.field == Field::kLower) {
      lower_[at(change.index)] = change.before;
    } else {
      const Item& item = items_[at(change.index)];
      is_placed_[at(change.index)] = 0;
      for (std::int32_t s = item.first; s < item.last; ++s) {
        sections_[at(s)].left += item.bytes;
        ++sections_[at(s)].num_left;
      }
    }
  }
}

}  // namespace anabatic::plan
