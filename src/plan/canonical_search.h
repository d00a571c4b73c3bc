// SPDX-License-Identifier: Apache-2.0
// The search of offset_search.h: does a set of items fit below a capacity, and how?
//
// Only canonical placements are considered: every item is on the arena's bottom or directly on an
// item that is alive at the same time. Pushing items down makes any placement so. Time is cut into
// sections, the maximal sets of items alive together. A section has a floor, below which nothing
// more will be placed, and a load that is still to be placed. Where floors form a valley, either
// some item that fits into it is placed at its floor, or none is and the floor rises. The search
// branches on that, item by item, in the valley section with the fewest candidates for its failures
// so far.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "analysis/liveness.h"

namespace anabatic::plan {

// What a search may still use.
struct SearchBudget {
  std::int64_t steps = 0;
  std::optional<std::chrono::steady_clock::time_point> deadline{};
  bool is_late() const { return deadline && std::chrono::steady_clock::now() >= *deadline; }
  bool is_spent() const { return steps <= 0 || is_late(); }
};

class CanonicalSearch {
 public:
  enum class Outcome { kPlaced, kImpossible, kGaveUp };

  // Items have bytes > 0 and lifetimes that are not empty.
  explicit CanonicalSearch(std::span<const analysis::LiveBytes> items);

  // There are too many pairs of item and section to store: run gives up at once.
  bool is_too_large() const { return sections_.empty() && !items_.empty(); }

  // Dives with restarts until it is decided or max_steps of the budget are spent.
  Outcome run(std::int64_t capacity, std::int64_t max_steps, SearchBudget& budget);

  // After kPlaced.
  const std::vector<std::int64_t>& offsets() const { return lower_; }

 private:
  struct Item {
    std::int32_t first, last;  // sections [first, last)
    std::int64_t bytes;
    std::int32_t twin_before = -1, twin_after = -1;  // of equal sections and bytes
  };
  struct Section {
    std::vector<std::int32_t> items;
    std::int64_t load = 0;
    // The state of a dive.
    std::int64_t floor = 0, left = 0;  // bytes still to be placed
    std::int32_t num_left = 0;
    bool is_queued = false;
    double failures = 1;
  };
  enum class Field : std::uint8_t { kFloor, kLower, kPlaced };
  struct Change {
    Field field;
    std::int32_t index;
    std::int64_t before;
  };
  // Sections [first, last) whose items share no section with other items left. `owner` is the
  // decision that separated them; it is undone when they have no solution.
  struct Goal {
    std::int32_t first, last, owner, next;
  };
  struct Decision {
    std::size_t num_changes, num_goals;
    std::int32_t goal, item;
  };

  void build_sections(std::span<const analysis::LiveBytes> items);
  void link_twins();
  void reset();
  void set_priorities(int round);
  Outcome dive(std::int64_t max_nodes, SearchBudget& budget);
  std::int32_t split(Goal goal, std::int32_t first, std::int32_t last);
  bool joins_left(std::int32_t section) const;
  std::int32_t choose_section(std::int32_t first, std::int32_t last);
  std::int32_t choose_item(std::int32_t section) const;
  bool is_candidate(std::int32_t item, std::int64_t floor) const;

  // Each returns false when the capacity no longer suffices.
  bool place(std::int32_t item);
  bool forbid(std::int32_t item);
  bool propagate();
  bool raise_section(Section& section);
  bool fits_by_release(const Section& section);

  void set_floor(std::int32_t section, std::int64_t value);
  void set_lower(std::int32_t item, std::int64_t value);
  void enqueue(std::int32_t section);
  void undo(std::size_t num_changes);

  std::vector<Item> items_;
  std::vector<Section> sections_;
  std::int64_t capacity_ = 0, steps_ = 0;
  bool lowest_first_ = false;  // valleys by height before failures

  std::vector<std::int64_t> lower_;  // lower bound of each item's offset; exact once it is placed
  std::vector<char> is_placed_;
  std::vector<double> priority_;
  std::vector<Change> changes_;
  std::vector<Goal> goals_;
  std::vector<Decision> decisions_;
  std::vector<std::int32_t> queue_;
  std::vector<std::pair<std::int64_t, std::int64_t>> released_;  // scratch: lower, bytes
};

}  // namespace anabatic::plan
