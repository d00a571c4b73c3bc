// SPDX-License-Identifier: Apache-2.0
// Turns a refusal into an exception, for callers that cannot continue without a plan.
#pragma once
#include <utility>

#include "anabatic/plan.h"
#include "plan/outcome.h"

namespace anabatic::plan {

using anabatic::BudgetError;

inline anabatic::Refusal to_public(const Refusal& refusal) {
  return {.reason = refusal.reason,
          .smallest_bytes = refusal.smallest_bytes,
          .consumers = refusal.consumers,
          .text = to_string(refusal)};
}

template <class T>
T value_or_throw(Outcome<T> outcome) {
  if (!outcome) throw BudgetError(to_public(outcome.refusal()));
  return *std::move(outcome);
}

}  // namespace anabatic::plan
