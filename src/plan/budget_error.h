// SPDX-License-Identifier: Apache-2.0
// The edge at which a refusal becomes an exception: for callers who cannot go on without a plan.
#pragma once
#include <utility>

#include "anabatic/error.h"
#include "plan/outcome.h"

namespace anabatic::plan {

class BudgetError : public ResourceError {
 public:
  explicit BudgetError(Refusal refusal)
      : ResourceError(to_string(refusal)), refusal_(std::move(refusal)) {}
  const Refusal& refusal() const { return refusal_; }

 private:
  Refusal refusal_;
};

template <class T>
T value_or_throw(Outcome<T> outcome) {
  if (!outcome) throw BudgetError(outcome.refusal());
  return *std::move(outcome);
}

}  // namespace anabatic::plan
