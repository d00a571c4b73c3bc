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
  std::vector<std::string> hot{};  // as `keep`, where it names any (plan/hints.h)
  // What a budget may compress, and hints as above: values that are compressed, budget or not, to
  // the last form that is allowed.
  CompressionOptions compression{};
  std::vector<std::string> compress{};
  OffloadOptions offload{};  // what a budget may put on disk between forward and backward
  // Taken as they are, with nothing to choose; hints must agree with them.
  std::optional<spec::Decisions> replay{};
  bool asks() const {
    return budget_bytes > 0 || !recompute.empty() || !compress.empty() || !offload.cold.empty() ||
           replay.has_value();
  }
};

struct PricedChoice : ChoiceId {
  std::int64_t bytes = 0;  // that are no longer kept
  double seconds = 0;      // a micro-batch would be shorter by, without this choice alone
  std::size_t item = 0;    // of the menu that it is from
};

struct MemoryDecision {
  spec::Decisions decisions;
  std::vector<PricedChoice> choices{};        // in the order of the graph
  double added_seconds = 0;                   // to a micro-batch, all choices together
  std::int64_t packings_bytes = 0;            // of second packings that the backward repacks
  double packing_seconds = 0;                 // for them, in added_seconds too
  bool holds = true;                          // the frame's budget, as simulated
  std::vector<PricedChoice> first_choices{};  // of decisions.first
  double first_added_seconds = 0;             // to that micro-batch
};

// The question that one menu asks, whatever the frame: hints as rules, and what excludes what. Menu
// and options must outlive it.
class MemoryDecider {
 public:
  // InvalidArgument when a hint names nothing that the backward reads, or is at odds with another.
  MemoryDecider(const MemoryMenu& menu, const MemoryOptions& options);

  // For a frame of at most `frame_bytes`. InvalidArgument when what is replayed names no value that
  // the backward reads, or is at odds with a hint.
  MemoryDecision decide(std::int64_t frame_bytes) const;
  // The same, or where that is cheaper what a little smaller frames ask for: taking by ratio is no
  // exact method. Of a long menu the search goes on from `last`, which a larger frame was given.
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

// One line a kind of choice, layers together: "experts.activation in 8 places", bytes and seconds;
// empty when everything is kept.
std::string to_string(const MemoryDecision& decision);

}  // namespace anabatic::plan
