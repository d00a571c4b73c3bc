// SPDX-License-Identifier: Apache-2.0
// Decides which values a step recomputes, compresses or puts on disk, and which calls it slices, to
// fit a budget of bytes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/memory_menu.h"

namespace anabatic::plan {

struct MemoryOptions {
  std::int64_t budget_bytes = 0;  // for arenas and states of the program; 0: no budget
  // Hints: values, by name with or without their layer, or whole segments. `recompute` are always
  // recomputed, `keep` never.
  std::vector<std::string> recompute{}, keep{};
  std::vector<std::string> hot{};  // as `keep`, if it names any (plan/hints.h)
  // The forms to which a budget may compress values; and hints as above: values that are always
  // compressed, to the last form that is allowed.
  CompressionOptions compression{};
  std::vector<std::string> compress{};
  OffloadOptions offload{};  // what a budget may put on disk between forward and backward
  // Decisions to use as they are, without choosing; hints must agree with them.
  std::optional<spec::Decisions> replay{};
  bool asks() const {
    return budget_bytes > 0 || !recompute.empty() || !compress.empty() || !offload.cold.empty() ||
           replay.has_value();
  }
};

struct PricedChoice : ChoiceId {
  std::int64_t bytes = 0;  // that are no longer kept
  double seconds = 0;      // by which a micro-batch would be shorter without this choice alone
  std::size_t item = 0;    // index in its menu
};

struct MemoryDecision {
  spec::Decisions decisions;
  std::vector<PricedChoice> choices{};        // in the order of the graph
  double added_seconds = 0;                   // to a micro-batch, all choices together
  std::int64_t packings_bytes = 0;            // of packings that a micro-batch makes
  double packing_seconds = 0;                 // for them, in added_seconds too
  bool holds = true;                          // fits the frame's budget, as simulated
  std::vector<PricedChoice> first_choices{};  // of decisions.first
  double first_added_seconds = 0;             // to that micro-batch
};

// Chooses from one menu, for any frame: hints become rules, and it knows which items exclude each
// other. Menu and options must outlive it.
class MemoryDecider {
 public:
  // InvalidArgument if a hint names nothing that the backward reads, or contradicts another.
  MemoryDecider(const MemoryMenu& menu, const MemoryOptions& options);

  // For a frame of at most `frame_bytes`. InvalidArgument if replayed decisions name no value that
  // the backward reads, or contradict a hint.
  MemoryDecision decide(std::int64_t frame_bytes) const;
  // The same, or the choice for a slightly smaller frame if that is cheaper: taking items by ratio
  // is not exact. For a long menu the search starts from `last`, the decision for a larger frame.
  MemoryDecision decide_cheapest(std::int64_t frame_bytes,
                                 const MemoryDecision* last = nullptr) const;
  // `decision`, which is of this menu, without some of its choices.
  MemoryDecision without(const MemoryDecision& decision, const std::vector<PricedChoice>& choices,
                         std::int64_t frame_bytes) const;
  // Whether a hint asks for this choice of the menu, budget or not.
  bool is_hinted(const PricedChoice& choice) const {
    return rules_[choice.item] == ItemRule::kTake;
  }

 private:
  MenuChoice choose(std::int64_t frame_bytes, const std::vector<bool>& taken = {}) const;
  MenuChoice evaluated(std::vector<bool> chosen, std::int64_t frame_bytes) const;
  MemoryDecision priced(const MenuChoice& choice) const;

  const MemoryMenu& menu_;
  const MemoryOptions& options_;
  std::vector<ItemRule> rules_;  // by item of the menu
  Alternatives alternatives_;
};

// One line for each kind of choice, layers together: "experts.activation in 8 places", bytes and
// seconds. Empty if everything is kept.
std::string to_string(const MemoryDecision& decision);

}  // namespace anabatic::plan
