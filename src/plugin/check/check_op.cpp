// SPDX-License-Identifier: Apache-2.0
#include "plugin/check/check_op.h"

#include <fmt/core.h>

#include <set>
#include <utility>

#include "plugin/check/cases.h"
#include "plugin/check/check_case.h"
#include "plugin/check/check_kernel.h"
#include "plugin/check/child.h"
#include "plugin/plugin_attributes.h"

namespace anabatic::plugin::check {
namespace {

class Collector {
 public:
  explicit Collector(std::string_view name) : name_(name) {}

  // False where no more cases are to run.
  bool add(const Outcome& outcome, const std::string& where) {
    switch (outcome.result) {
      case Outcome::Result::kPassed:
        ++report_.num_passed;
        return true;
      case Outcome::Result::kSkipped:
        ++report_.num_skipped;
        if (first_skipped_.empty()) first_skipped_ = fmt::format("({}): {}", where, outcome.text);
        return true;
      case Outcome::Result::kFailed:
        break;
    }
    ++report_.num_failed;
    if (kinds_.emplace(outcome.function, outcome.kind).second)
      report_.failures.push_back(fmt::format("[check-op] {} {} {} ({}{}{})", name_,
                                             outcome.function, outcome.text, where,
                                             outcome.note.empty() ? "" : "; ", outcome.note));
    return outcome.kind != "timeout";
  }

  Report finish() {
    if (report_.num_passed + report_.num_failed == 0)
      report_.failures.push_back(fmt::format("[check-op] {} has no case to check", name_));
    if (report_.num_skipped > 0)
      report_.notes.push_back(
          fmt::format("{} skipped, the first one {}", report_.num_skipped, first_skipped_));
    return std::move(report_);
  }

 private:
  std::string_view name_;
  Report report_;
  std::set<std::pair<std::string, std::string>> kinds_;
  std::string first_skipped_;
};

}  // namespace

Report check_op(const PluginOp& op, std::chrono::seconds limit) {
  Collector collector(op.name());
  for (const Case& one : cases_of(op.inputs())) {
    const Outcome outcome =
        run_in_child(limit, [&](Reporter& reporter) { check_case(op, one, reporter); });
    if (!collector.add(outcome, to_string(one, op.inputs()))) break;
  }
  Report report = collector.finish();
  if (!op.has_gradient())
    report.notes.push_back(fmt::format(
        "{} has no backward: gradients are not checked, and a model cannot be trained with it",
        op.name()));
  return report;
}

bool can_check(const PluginKernel& kernel) { return !forms_of(kernel.op()).empty(); }

Report check_kernel(const PluginKernel& kernel, std::chrono::seconds limit) {
  Collector collector(kernel.name());
  for (const KernelForm& form : forms_of(kernel.op()))
    for (const Case& one : cases_of(form.inputs)) {
      const Outcome outcome = run_in_child(
          limit, [&](Reporter& reporter) { check_kernel_case(kernel, form, one, reporter); });
      const spec::Attributes attributes = attributes_of(form, one);
      const std::string where =
          (attributes.empty() ? "" : to_json(attributes) + "; ") + to_string(one, form.inputs);
      if (!collector.add(outcome, where)) return collector.finish();
    }
  return collector.finish();
}

std::string to_string(const Report& report, std::string_view name) {
  const std::string failed =
      report.num_failed == 0 ? "" : fmt::format(", {} failed", report.num_failed);
  return fmt::format("{}: {} cases passed{}, {} skipped", name, report.num_passed, failed,
                     report.num_skipped);
}

}  // namespace anabatic::plugin::check
