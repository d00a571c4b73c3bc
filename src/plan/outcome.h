// SPDX-License-Identifier: Apache-2.0
// The outcome of planning within a budget: the plan, or a refusal with the reason.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "anabatic/plan.h"

namespace anabatic::plan {

using anabatic::Consumer;

struct Refusal {
  std::string reason;  // one line
  // Smallest of the plans that were tried, counted as `reason` counts; 0: unknown.
  std::int64_t smallest_bytes = 0;
  std::vector<Consumer> consumers{};
  bool lacks_disk = false;  // the disk has no room for the states that were to go there
  std::string unit{};       // of consumers' bytes in texts (format_bytes_up); "": any
};

// The reason, and a line for each consumer.
std::string to_string(const Refusal& refusal);

template <class T>
class [[nodiscard]] Outcome {
 public:
  Outcome(T value) : result_(std::move(value)) {}
  Outcome(Refusal refusal) : result_(std::move(refusal)) {}

  explicit operator bool() const { return std::holds_alternative<T>(result_); }
  T& operator*() & { return std::get<T>(result_); }
  const T& operator*() const& { return std::get<T>(result_); }
  T&& operator*() && { return std::get<T>(std::move(result_)); }
  T* operator->() { return &std::get<T>(result_); }
  const T* operator->() const { return &std::get<T>(result_); }
  const Refusal& refusal() const { return std::get<Refusal>(result_); }

 private:
  std::variant<T, Refusal> result_;
};

}  // namespace anabatic::plan
