// SPDX-License-Identifier: Apache-2.0
#include "spec/step.h"

#include <bit>

#include "base/error.h"

namespace anabatic::spec {

std::string_view to_string(Place place) {
  switch (place) {
    case Place::kOnly:
      return "only";
    case Place::kFirst:
      return "first";
    case Place::kMiddle:
      return "middle";
    case Place::kLast:
      return "last";
  }
  ANABATIC_CHECK(false, "[step] unknown code {} of a place", static_cast<int>(place));
}

Place place_of(std::int64_t micro_batch, std::int64_t num_micro_batches, std::int64_t num_leaves) {
  ANABATIC_CHECK(micro_batch >= 0 && micro_batch < num_micro_batches, "[step] micro-batch {} of {}",
                 micro_batch, num_micro_batches);
  const bool begins = micro_batch % (num_micro_batches / num_leaves) == 0,
             ends = micro_batch + 1 == num_micro_batches;
  if (begins) return ends ? Place::kOnly : Place::kFirst;
  return ends ? Place::kLast : Place::kMiddle;
}

std::int32_t num_levels(std::int64_t num_leaves) {
  ANABATIC_CHECK(num_leaves > 0 && std::has_single_bit(static_cast<std::uint64_t>(num_leaves)),
                 "[step] {} leaves", num_leaves);
  return std::countr_zero(static_cast<std::uint64_t>(num_leaves));
}

std::string to_string(Places places) {
  std::string result;
  for (const Place place : kPlaces)
    if (places.contains(place)) result.append(result.empty() ? "" : ", ").append(to_string(place));
  return result;
}

StepEntry step_entry(const VariantPlaces& variants, Action action, std::int64_t micro_batch,
                     std::int64_t num_micro_batches, std::int64_t num_leaves) {
  const auto found = variants.find(action);
  ANABATIC_REQUIRE(found != variants.end(), "[step] expected an action of the program, got {}",
                   to_string(action));
  const Place place = place_of(micro_batch, num_micro_batches, num_leaves);
  Places planned;
  for (std::size_t i = 0; i < found->second.size(); ++i) {
    if (found->second[i].contains(place))
      return {action, static_cast<std::int32_t>(micro_batch), static_cast<std::int32_t>(i)};
    planned = planned | found->second[i];
  }
  throw InvalidArgument(fmt::format(
      "[step] {}: expected a step with micro-batches as planned ({}), got the {} one of {}",
      to_string(action), to_string(planned), to_string(place), num_micro_batches));
}

std::vector<StepEntry> step_schedule(const VariantPlaces& variants, std::int64_t num_micro_batches,
                                     std::int64_t num_leaves) {
  ANABATIC_REQUIRE(num_micro_batches > 0, "[step] expected at least one micro-batch, got {}",
                   num_micro_batches);
  ANABATIC_REQUIRE(num_micro_batches % num_leaves == 0,
                   "[step] expected a multiple of {} micro-batches, one for each leaf, got {}",
                   num_leaves, num_micro_batches);
  std::vector<StepEntry> schedule;
  const auto add = [&](Action action, std::int64_t micro_batch) {
    if (variants.contains(action))
      schedule.push_back(step_entry(variants, action, micro_batch, num_micro_batches, num_leaves));
  };
  for (std::int64_t i = 0; i < num_micro_batches; ++i) {
    add(Action::kForward, i);
    add(Action::kBackward, i);
    const std::int64_t end = (i + 1) * num_leaves / num_micro_batches;  // of whole leaves
    if ((i + 1) * num_leaves % num_micro_batches == 0 && end < num_leaves)
      schedule.push_back({Action::kSumLeaf, static_cast<std::int32_t>(i),
                          std::countr_zero(static_cast<std::uint64_t>(end))});
  }
  add(Action::kUpdate, num_micro_batches - 1);
  return schedule;
}

std::string to_string(const std::vector<StepEntry>& schedule) {
  std::string result;
  for (const StepEntry& entry : schedule) {
    result.append(result.empty() ? "" : ", ").append(to_string(entry.action));
    if (entry.action != Action::kUpdate) result += fmt::format(" {}", entry.micro_batch);
    if (entry.variant != 0) result += fmt::format(":{}", entry.variant);
  }
  return result;
}

}  // namespace anabatic::spec
