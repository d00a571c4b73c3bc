// SPDX-License-Identifier: Apache-2.0
// What is said where nothing that the planner may do keeps the step within its budget.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "anabatic/error.h"
#include "base/text.h"

namespace anabatic::plan {

// A part of what a step takes, and what would shrink it: keys and values.
struct Consumer {
  std::string name;
  std::int64_t bytes = 0;  // 0: a remark, such as why a remedy is not open
  std::string remedy;      // "": none
};

class BudgetError : public ResourceError {
 public:
  // The message is `text`, one line, and a line for each consumer, whose bytes `show` writes.
  explicit BudgetError(const std::string& text, std::int64_t smallest_bytes = 0,
                       std::vector<Consumer> consumers = {},
                       const std::function<std::string(std::int64_t)>& show = format_bytes);
  // Of the plans that were tried, in the terms of whoever throws; 0: unknown.
  std::int64_t smallest_bytes() const { return smallest_bytes_; }
  const std::vector<Consumer>& consumers() const { return consumers_; }

 private:
  std::int64_t smallest_bytes_;
  std::vector<Consumer> consumers_;
};

}  // namespace anabatic::plan
