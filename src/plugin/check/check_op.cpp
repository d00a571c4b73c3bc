// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/check_op.h"

#include <fmt/core.h>

#include <set>
#include <utility>

#include "plugin/check/cases.h"
#include "plugin/check/check_case.h"
#include "plugin/check/child.h"

namespace anabatic::plugin::check {

OpReport check_op(const PluginOp& op, std::chrono::seconds limit) {
  OpReport report;
  std::set<std::pair<std::string, std::string>> kinds;
  std::string first_skipped;
  for (const Case& one : cases_of(op)) {
    const Outcome outcome =
        run_in_child(limit, [&](Reporter& reporter) { check_case(op, one, reporter); });
    if (outcome.result == Outcome::Result::kPassed) ++report.num_passed;
    if (outcome.result == Outcome::Result::kSkipped) {
      ++report.num_skipped;
      if (first_skipped.empty())
        first_skipped = fmt::format("({}): {}", to_string(one, op), outcome.text);
    }
    if (outcome.result != Outcome::Result::kFailed) continue;
    ++report.num_failed;
    if (kinds.emplace(outcome.function, outcome.kind).second)
      report.failures.push_back(fmt::format("[check-op] {} {} {} ({}{}{})", op.name(),
                                            outcome.function, outcome.text, to_string(one, op),
                                            outcome.note.empty() ? "" : "; ", outcome.note));
    if (outcome.kind == "timeout") break;
  }
  if (report.num_passed + report.num_failed == 0)
    report.failures.push_back(fmt::format("[check-op] {} has no case to check", op.name()));
  if (report.num_skipped > 0)
    report.notes.push_back(
        fmt::format("{} skipped, the first one {}", report.num_skipped, first_skipped));
  if (!op.has_gradient())
    report.notes.push_back(fmt::format(
        "{} has no backward: gradients are not checked, and a model cannot be trained with it",
        op.name()));
  return report;
}

std::string to_string(const OpReport& report, const PluginOp& op) {
  const std::string failed =
      report.num_failed == 0 ? "" : fmt::format(", {} failed", report.num_failed);
  return fmt::format("{}: {} cases passed{}, {} skipped", op.name(), report.num_passed, failed,
                     report.num_skipped);
}

}  // namespace anabatic::plugin::check
