// SPDX-License-Identifier: Apache-2.0
#include "plan/budget_error.h"

#include <utility>

namespace anabatic::plan {
namespace {

std::string to_lines(const std::vector<Consumer>& consumers,
                     const std::function<std::string(std::int64_t)>& show) {
  std::string text;
  for (const Consumer& consumer : consumers) {
    text += "\n  " + consumer.name;
    if (consumer.bytes > 0) text += " " + show(consumer.bytes);
    if (!consumer.remedy.empty()) text += ": " + consumer.remedy;
  }
  return text;
}

}  // namespace

BudgetError::BudgetError(const std::string& text, std::int64_t smallest_bytes,
                         std::vector<Consumer> consumers,
                         const std::function<std::string(std::int64_t)>& show)
    : ResourceError(text + to_lines(consumers, show)),
      smallest_bytes_(smallest_bytes),
      consumers_(std::move(consumers)) {}

}  // namespace anabatic::plan
