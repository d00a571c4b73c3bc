// SPDX-License-Identifier: Apache-2.0
#include "search/planned_step.h"

namespace anabatic::search {

plan::StepPrice price_step(const PlannedStep& step, const spec::DeviceSpec& device,
                           const plan::OpEfficiency& efficiency, std::int64_t num_micro_batches) {
  const auto price = [&](const auto& planned, std::int64_t count) {
    return plan::price_step(planned.graph, planned.plan, device, efficiency, count);
  };
  plan::StepPrice result = price(step, num_micro_batches);
  if (!step.first || num_micro_batches < 2) return result;
  const plan::StepPrice first = price(*step.first, 1), other = price(step, 1);
  for (const auto part :
       {&plan::StepPrice::forward_seconds, &plan::StepPrice::backward_seconds,
        &plan::StepPrice::disk_seconds, &plan::StepPrice::seconds, &plan::StepPrice::flops})
    result.*part += first.*part - other.*part;
  result.seconds -= first.update_seconds - other.update_seconds;
  return result;
}

std::map<std::string, double> price_segments(const PlannedStep& step,
                                             const spec::DeviceSpec& device,
                                             const plan::OpEfficiency& efficiency,
                                             std::int64_t num_micro_batches) {
  std::map<std::string, double> result =
      plan::price_segments(step.graph, step.plan, device, efficiency, num_micro_batches, true);
  if (!step.first || num_micro_batches < 2) return result;
  const auto one = [&](const auto& planned) {
    return plan::price_segments(planned.graph, planned.plan, device, efficiency, 1, false);
  };
  for (const auto& [segment, seconds] : one(*step.first)) result[segment] += seconds;
  for (const auto& [segment, seconds] : one(step)) result[segment] -= seconds;
  return result;
}

}  // namespace anabatic::search
