// SPDX-License-Identifier: Apache-2.0
// What planning within a budget comes to: what was asked for, or a refusal that says why not.
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
  // Of the plans that were tried, in the terms of whoever refuses; 0: unknown.
  std::int64_t smallest_bytes = 0;
  std::vector<Consumer> consumers{};
  bool lacks_disk = false;  // the disk has no room for the states that were to go there
  std::string unit{};       // in which consumers' bytes are written (format_bytes_up); "": any
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
