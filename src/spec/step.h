// SPDX-License-Identifier: Apache-2.0
// A training step as a list: what runs, one entry after the other.
//
// A step's micro-batches are divided into leaves, equal runs of them. Gradients add up within a
// leaf. Sums of leaves add up in a balanced binary tree: so it makes no difference to their bits
// which ranks have which leaves. Most steps have one leaf.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "spec/enum_set.h"
#include "spec/execution.h"

namespace anabatic::spec {

// Where a micro-batch stands: kFirst begins a leaf, kLast ends the step, kOnly does both. The calls
// of an action differ by it.
enum class Place : std::uint8_t { kOnly, kFirst, kMiddle, kLast };
inline constexpr std::array kPlaces{Place::kOnly, Place::kFirst, Place::kMiddle, Place::kLast};
std::string_view to_string(Place place);

// `num_leaves` divides the micro-batches.
Place place_of(std::int64_t micro_batch, std::int64_t num_micro_batches,
               std::int64_t num_leaves = 1);

using Places = EnumSet<Place>;

inline constexpr Places kEveryPlace{Place::kOnly, Place::kFirst, Place::kMiddle, Place::kLast};
inline constexpr Places kLeafBegins{Place::kOnly, Place::kFirst};  // gradients are assigned
inline constexpr Places kStepEnds{Place::kOnly, Place::kLast};     // the update follows

std::string to_string(Places places);  // "only, first"

// The levels of the tree of so many leaves, a power of two. A level holds the sum of 2^level
// leaves.
std::int32_t num_levels(std::int64_t num_leaves);

// One run of an action's calls. A kSumLeaf adds the leaf that has ended, and the levels below its
// variant, to a sum that this level holds from then on.
struct StepEntry {
  Action action{};
  std::int32_t micro_batch = 0;  // of the step, from 0; of kUpdate and kSumLeaf: the last one
  std::int32_t variant = 0;      // of the action's lists of calls, by index in the program
  bool operator==(const StepEntry&) const = default;
};

// By action: the places that each of its variants is for.
using VariantPlaces = std::map<Action, std::vector<Places>>;

// The run of an action for a micro-batch of a step of so many. InvalidArgument when no variant of
// the action is for its place.
StepEntry step_entry(const VariantPlaces& variants, Action action, std::int64_t micro_batch,
                     std::int64_t num_micro_batches, std::int64_t num_leaves = 1);

// F0 B0 F1 B1 ... U, of the actions that there are, with a kSumLeaf after each leaf but the last.
// InvalidArgument as above, when the step has no micro-batch, and when its leaves do not divide it.
std::vector<StepEntry> step_schedule(const VariantPlaces& variants, std::int64_t num_micro_batches,
                                     std::int64_t num_leaves = 1);

// "forward 0, backward 0, update", with the variant after a colon where it is not the first.
std::string to_string(const std::vector<StepEntry>& schedule);

}  // namespace anabatic::spec
