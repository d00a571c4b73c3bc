// SPDX-License-Identifier: Apache-2.0
// A plan file that is read prints stably and can be compared.
#include "fuzz/fuzz_target.h"
#include "train/plan_file.h"

using namespace anabatic;

namespace {

void check(const train::PlanFile& plan) {
  fuzz::MemoryFile file;
  const std::string printed = train::to_json(plan);
  file.write(printed);
  const train::PlanFile again = train::read_plan_file(file.path());
  fuzz::require(train::to_json(again) == printed, "the text of a plan is stable");
  fuzz::require(again.decisions == plan.decisions, "equal decisions");
  fuzz::require(train::difference(plan, again) == "the plans are the same\n", "no difference");
  train::difference(plan, {});
  train::difference({}, plan);
  train::require_same_step(plan, plan.step, "plan.json");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::read_file_or_refuse(data, size, train::read_plan_file, check);
}
