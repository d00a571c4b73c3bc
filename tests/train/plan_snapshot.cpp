// SPDX-License-Identifier: Apache-2.0
// Plans a model under many budgets and settings and writes each outcome to a file: two builds whose
// folders are equal (diff -r) plan alike. Prices, caches' sizes aside, are those of no machine.
//   plan_snapshot FOLDER MODEL_DIR [PART_OF_A_NAME]
// FOLDER lies on a disk. Standard output names each case and its seconds of the CPU.
#include <fmt/core.h>
#include <sys/stat.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "base/text.h"
#include "device/topology.h"
#include "runtime/program.h"
#include "train/budget.h"
#include "train/plan_file.h"

namespace anabatic::train {
namespace {

struct Setting {
  std::string name;
  Overrides keys;
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all{
      {"fp32", {{"train.precision", {"fp32"}}}},
      {"bf16_4", {{"train.gradient_accumulation_steps", {"4"}}}},
      {"resident_2",
       {{"train.gradient_accumulation_steps", {"2"}}, {"memory.optimizer_state", {"resident"}}}},
      {"in_backward", {{"optimizer.update", {"in_backward"}}}},
      {"validation", {{"data.validation", {"some"}}, {"optimizer.state_precision", {"bf16"}}}},
      {"moments_disk",
       {{"memory.optimizer_state", {"disk"}},
        {"memory.masters", {"disk"}},
        {"train.gradient_accumulation_steps", {"2"}}}},
      {"parameters_disk",
       {{"memory.optimizer_state", {"disk"}},
        {"memory.parameters", {"disk"}},
        {"train.precision", {"fp32"}}}},
      {"compress",
       {{"memory.compress", {"int8"}},
        {"optimizer.state_precision", {"int8"}},
        {"train.gradient_accumulation_steps", {"2"}}}},
      {"activations_disk",
       {{"memory.activations", {"disk"}}, {"compiler.pack_transposed", {"false"}}}},
      {"hints",
       {{"memory.recompute", {"mlp_norm"}},
        {"memory.keep", {"attention"}},
        {"memory.masters", {"resident"}},
        {"memory.parameters", {"resident"}}}},
      {"no_disk", {{"memory.swap_directory", {"/dev/shm"}}}},
  };
  return all;
}

class Snapshot {
 public:
  Snapshot(std::filesystem::path folder, const std::string& model, const Setting& setting)
      : folder_(std::move(folder)), name_(setting.name), device_(device::describe_cpu(2)) {
    Overrides keys{{"model.path", {model}},
                   {"model.init", {"random"}},
                   {"train.precision", {"bf16"}},
                   {"memory.budget", {"none"}},
                   {"memory.swap_directory", {folder_.string()}}};
    for (const auto& [key, values] : setting.keys) keys[key] = values;
    run_ = with_training_precision(load_run_config("", keys));
    config_ = model::load_config(run_.model.path);
  }

  void write_all() {
    const std::int64_t peak = write("none", run_);
    for (const int percent : {90, 80, 70, 60, 50, 40, 30, 5}) {
      RunConfig run = run_;
      run.memory.budget = peak / 100 * percent;
      run.memory.budget_unit = percent == 30 ? "MiB" : "";
      write(fmt::format("{}", percent), run);
    }
    RunConfig automatic = run_;
    automatic.memory.budget = RunConfig::Memory::kAvailable;
    write("auto", automatic, peak / 100 * 60 - kProcess);
  }

 private:
  static constexpr std::int64_t kProcess = std::int64_t{48} << 20;

  // Returns the plan's peak.
  std::int64_t write(const std::string& budget, const RunConfig& run, std::int64_t available = 0) {
    const std::string name = fmt::format("{}.{}", name_, budget);
    const std::clock_t begin = std::clock();
    std::int64_t peak = 0;
    std::string text;
    const plan::Outcome<BudgetedRun> planned = plan_as_asked(run, config_, machine(available));
    if (planned) {
      peak = planned->memory.peak_bytes;
      text = describe(run, *planned);
      if (budget == "70") text += replay(run, *planned);
    } else {
      text = fmt::format("refused: {}\n", to_string(planned.refusal()));
    }
    fmt::print("{} {:.3f}\n", name,
               static_cast<double>(std::clock() - begin) / static_cast<double>(CLOCKS_PER_SEC));
    std::fflush(stdout);
    write_file_atomically(folder_ / (name + ".txt"), text);
    return peak;
  }

  Machine machine(std::int64_t available = 0) const {
    return {.device = device_,
            .efficiency = plan::default_efficiency(),
            .limits = {.process_bytes = kProcess, .available_bytes = available}};
  }

  std::string describe(const RunConfig& run, const BudgetedRun& planned) const {
    const lower::Compiled& training = planned.plan.training;
    const plan::StepPrice price = price_run(run, training, device_, plan::default_efficiency());
    std::string text = fmt::format("note {}\nstep {}\ngraph {:016x}\nprogram {}\n", planned.note,
                                   planned.plan.step_bytes, ir::hash(training.graph),
                                   std::hash<std::string>()(runtime::print(training.program)));
    if (training.first)
      text +=
          fmt::format("first {:016x}\n", plan::hash(training.first->graph, training.first->plan));
    if (planned.plan.evaluation)
      text += fmt::format("evaluation {}\n", plan_hash(*planned.plan.evaluation));
    for (const passes::PassReport& pass : training.passes)
      text += fmt::format("{} {} {}\n", pass.name, pass.changed, pass.skipped);
    return text + plan::to_string(training.memory) + disk_to_string(run, training, price) + "\n" +
           to_json(make_plan_file(run, config_, device_, training, planned.memory, price.seconds)) +
           "\n";
  }

  std::string replay(RunConfig run, const BudgetedRun& planned) const {
    const std::filesystem::path file = folder_ / "replayed.json";
    write_file_atomically(file, to_json(make_plan_file(run, config_, device_, planned.plan.training,
                                                       planned.memory, 0)));
    run.memory.plan = file.string();
    const BudgetedRun again = *plan_as_asked(run, config_, machine());
    std::filesystem::remove(file);
    return fmt::format("replayed {}\n", plan_hash(again.plan.training));
  }

  const std::filesystem::path folder_;
  const std::string name_;
  const spec::DeviceSpec device_;
  RunConfig run_;
  model::ModelConfig config_;
};

}  // namespace
}  // namespace anabatic::train

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: plan_snapshot FOLDER MODEL_DIR [PART_OF_A_NAME]\n");
    return 2;
  }
  // No measurement of this machine's disk is read.
  setenv("XDG_CACHE_HOME", (std::filesystem::path(argv[1]) / "no-cache").c_str(), 1);
  std::filesystem::create_directories(argv[1]);
  for (const anabatic::train::Setting& setting : anabatic::train::settings())
    if (argc < 4 || setting.name.find(argv[3]) != std::string::npos)
      anabatic::train::Snapshot(argv[1], argv[2], setting).write_all();
  return 0;
}
