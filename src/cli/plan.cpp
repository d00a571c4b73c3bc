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
                   "[plan] --diff: expected one file together with a model, got two");
  for (const char* other : {"--json", "--settings"})
    ANABATIC_REQUIRE(!invocation.has(other),
                     "[plan] --diff prints the differences of two plans: expected no {}", other);
  return found->second;
}

// For a run whose own setting does not fit: prints settings that do. False where none does.
bool print_other_settings(const Invocation& invocation, const train::RunConfig& config,
                          const plan::Refusal& refusal) {
  const train::SettingsFound found = find_settings(config, config.memory.budget);
  if (!found.largest_micro_batch && !found.longest_sequence) return false;
  for (const char* written : {"--save", "--timeline"})
    if (invocation.has(written))
      log_warning("[plan] {} {}: not written, because the run's own setting does not fit", written,
                  invocation.value(written));
  print_output(
      "{}", invocation.has("--json") ? to_json(refusal, found) + "\n" : to_table(refusal, found));
  return true;
}

int run_plan(const Invocation& invocation) {
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
  // Checked first, so that a path that cannot be written to fails at once.
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
      "predict memory and time of a training step from config.json alone",
      "MODEL_DIR_OR_CONFIG?",
      {{.name = "--json", .help = "print one JSON object", .is_flag = true},
       {.name = "--timeline", .help = "write a chart of the step's bytes by use to this FILE.svg"},
       {.name = "--settings",
        .help = "also find the largest micro-batch, longest sequence and fastest setting that fit",
        .is_flag = true},
       {.name = "--calibrate",
        .help = "measure this machine first, which takes a few seconds, and store the result for "
                "later plans",
        .is_flag = true},
       {.name = "--save",
        .help = "write the choices of the plan to this FILE, for --plan and --diff"},
       {.name = "--diff",
        .help = "print the differences between the saved plan FILE and this one; with two files "
                "and no model, between those",
        .is_list = true},
       {.name = "--offsets",
        .help = "place the buffers of this FILE.csv, without a model; it has columns id, lower, "
                "upper and size, and is printed with a column offset"},
       {.name = "--capacity",
        .help = "size of the arena for --offsets; exit code 1 if no placement fits"},
       {.name = "--verbose",
        .help = "with --offsets: print the seconds it took to standard error",
        .is_flag = true}},
      true,
      run_plan};
  return verb;
}

}  // namespace anabatic::cli
