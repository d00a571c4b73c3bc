// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "bench/calibrate.h"
#include "cli/calibrate_once.h"
#include "cli/plan_model.h"
#include "cli/plan_offsets.h"
#include "cli/standard_output.h"
#include "cli/verb.h"
#include "device/topology.h"
#include "plan/budget_error.h"
#include "plan/timeline_svg.h"
#include "train/swap_tier.h"

namespace anabatic::cli {
namespace {

// A run config names its model itself; anything else is the model.
train::RunConfig run_config(const Invocation& invocation) {
  const std::string file = invocation.positionals.empty() ? "" : invocation.positionals[0];
  if (file.ends_with(".yaml") || file.ends_with(".yml"))
    return train::with_training_precision(train::load_run_config(file, invocation.overrides));
  train::Overrides overrides = invocation.overrides;
  if (!file.empty()) overrides["model.path"] = {file};
  return train::with_training_precision(train::load_run_config("", overrides));
}

void calibrate(const train::RunConfig& run) {
  const spec::DeviceSpec device = device::describe_cpu(static_cast<int>(run.device.threads));
  train::store_calibration(bench::calibrate(run.device.threads), device);
  fmt::print(stderr, "calibrated: {}\n", train::calibration_file(device).string());
}

std::vector<std::string> compared_files(const Invocation& invocation) {
  const auto found = invocation.options.find("--diff");
  if (found == invocation.options.end()) return {};
  ANABATIC_REQUIRE(found->second.size() <= 2, "[plan] --diff: expected one or two files, got {}",
                   found->second.size());
  ANABATIC_REQUIRE(found->second.size() == 1 || invocation.positionals.empty(),
                   "[plan] --diff: expected one file beside a model, got two");
  for (const char* other : {"--json", "--settings"})
    ANABATIC_REQUIRE(!invocation.has(other), "[plan] --diff prints what changes: expected no {}",
                     other);
  return found->second;
}

// Where the run's own setting does not fit: what does. False where nothing does.
bool print_other_settings(const Invocation& invocation, const train::RunConfig& config,
                          const plan::Refusal& refusal) {
  const train::SettingsFound found = find_settings(config, config.memory.budget);
  if (!found.largest_micro_batch && !found.longest_sequence) return false;
  for (const char* written : {"--save", "--timeline"})
    if (invocation.has(written))
      log_warning("[plan] {} {}: not written, for the setting asked for does not fit", written,
                  invocation.value(written));
  print_output(
      "{}", invocation.has("--json") ? to_json(refusal, found) + "\n" : to_table(refusal, found));
  return true;
}

int run(const Invocation& invocation) {
  if (invocation.has("--offsets")) return plan_offsets(invocation);
  const std::vector<std::string> compared = compared_files(invocation);
  if (compared.size() == 2) {
    print_output("{}", train::difference(train::read_plan_file(compared[0]),
                                         train::read_plan_file(compared[1])));
    return 0;
  }
  const train::RunConfig config = run_config(invocation);
  if (invocation.has("--calibrate")) {
    calibrate(config);
    train::measure_disk_once(config);
    if (config.model.path.empty()) return 0;
  }
  ANABATIC_REQUIRE(!config.model.path.empty(),
                   "[plan] expected MODEL_DIR, a config.json or a run config, got none");
  // Before anything long: a place that cannot be written to shows at once.
  for (const char* written : {"--timeline", "--save"})
    if (invocation.has(written)) require_writable(invocation.value(written));
  std::optional<train::PlanFile> before;
  if (!compared.empty()) before = train::read_plan_file(compared[0]);
  calibrate_once(config);
  plan::Outcome<ModelPlan> plan = plan_model(config);
  if (!plan && invocation.has("--settings") &&
      print_other_settings(invocation, config, plan.refusal()))
    return 0;
  const ModelPlan planned = plan::value_or_throw(std::move(plan));
  if (invocation.has("--save"))
    write_file_atomically(invocation.value("--save"), train::to_json(plan_file(planned)));
  if (invocation.has("--timeline"))
    write_file_atomically(
        invocation.value("--timeline"),
        plan::timeline_svg(planned.plan.training.graph, planned.plan.training.plan,
                           fmt::format("{}, {} x {} tokens, {}", planned.config.model_type,
                                       config.train.micro_batch_size, config.data.sequence_length,
                                       config.train.precision)));
  if (before) {
    print_output("{}", train::difference(*before, plan_file(planned)));
    return 0;
  }
  std::optional<train::SettingsFound> settings;
  if (invocation.has("--settings"))
    settings = find_settings(
        config, config.memory.budget > 0 ? config.memory.budget : planned.available_bytes);
  const train::SettingsFound* found = settings ? &*settings : nullptr;
  print_output(
      "{}", invocation.has("--json") ? to_json(planned, found) + "\n" : to_table(planned, found));
  return 0;
}

}  // namespace

const Verb& plan_verb() {
  static const Verb verb{
      "plan",
      "memory and time of a training step, from config.json alone",
      "MODEL_DIR_OR_CONFIG?",
      {{.name = "--json", .help = "print one JSON object", .is_flag = true},
       {.name = "--timeline", .help = "FILE.svg to write: bytes over the step by use"},
       {.name = "--settings",
        .help = "also the largest micro-batch, longest sequence and fastest setting that fit",
        .is_flag = true},
       {.name = "--calibrate",
        .help = "measure this machine first, a few seconds, and keep it for later plans",
        .is_flag = true},
       {.name = "--save", .help = "FILE to write: the choices, for --plan and --diff"},
       {.name = "--diff",
        .help = "print what changes from the saved plan FILE to this one; with two files and no "
                "model from the first to the second",
        .is_list = true},
       {.name = "--offsets",
        .help = "no model: FILE.csv with columns id, lower, upper, size; printed with a column "
                "offset"},
       {.name = "--capacity", .help = "of the arena for --offsets; exit code 1 if nothing fits"},
       {.name = "--verbose",
        .help = "with --offsets: print the seconds taken to standard error",
        .is_flag = true}},
      true,
      run};
  return verb;
}

}  // namespace anabatic::cli
