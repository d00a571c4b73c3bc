// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/methods.h"
#include "comm/mpi_world.h"
#include "device/memory.h"
#include "device/topology.h"
#include "model/lora/adapter.h"
#include "train/attention/key_blocks.h"
#include "train/budget.h"
#include "train/objective/run_model.h"
#include "train/open_dataset.h"
#include "train/ranks/ranks.h"
#include "train/sparsity/sparse_weights.h"
#include "train/swap_tier.h"

namespace anabatic::cli {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One document a sample.
double model_flops(const train::RunConfig& run, const model::ModelConfig& config) {
  const auto samples =
      static_cast<double>(run.train.micro_batch_size * run.train.gradient_accumulation_steps);
  const auto pairs = [&](std::int64_t window) {
    const double density =
        config.key_blocks ? model::key_block_lists(*config.key_blocks, run.data.sequence_length)
                                .density(run.data.sequence_length, window)
                          : 1.0;
    return samples * density * spec::causal_pairs(run.data.sequence_length, window);
  };
  return model::training_flops(
      config,
      run.train.micro_batch_size * run.train.gradient_accumulation_steps * run.data.sequence_length,
      pairs);
}

double ratio(std::int64_t a, std::int64_t b) {
  return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 1;
}

std::string setting_line(const char* what, const std::optional<train::Trial>& trial,
                         const char* remark = "") {
  if (!trial) return fmt::format("  {:<20} none fits\n", what);
  return fmt::format("  {:<20} {} x {}: peak {}, {:.3g} s a step, {:.0f} tokens/s{}\n", what,
                     trial->setting.micro_batch_size, trial->setting.sequence_length,
                     format_bytes(trial->peak_bytes), trial->step_seconds, trial->tokens_per_second,
                     remark);
}

std::string settings_table(const train::SettingsFound& settings) {
  const auto& [batch, length] = std::tie(settings.largest_micro_batch, settings.longest_sequence);
  const train::SettingsLimits& limits = settings.limits;
  const bool is_most = batch && batch->setting.micro_batch_size == limits.micro_batch_size;
  const bool is_longest =
      length && length->setting.sequence_length + limits.sequence_step > limits.sequence_length;
  return fmt::format(
      "settings     that fit, of {} tried\n{}{}{}", settings.num_trials,
      setting_line("largest micro-batch", batch, is_most ? ", the largest that is tried" : ""),
      setting_line("longest sequence", length,
                   is_longest ? ", the longest that the model supports" : ""),
      setting_line("fastest micro-batch", settings.fastest));
}

OrderedJson setting_json(const std::optional<train::Trial>& trial) {
  if (!trial) return {};
  return {{"micro_batch_size", trial->setting.micro_batch_size},
          {"sequence_length", trial->setting.sequence_length},
          {"peak_bytes", trial->peak_bytes},
          {"step_seconds", trial->step_seconds},
          {"tokens_per_second", trial->tokens_per_second}};
}

OrderedJson settings_json(const train::SettingsFound& settings) {
  return {{"num_trials", settings.num_trials},
          {"largest_micro_batch", setting_json(settings.largest_micro_batch)},
          {"longest_sequence", setting_json(settings.longest_sequence)},
          {"fastest", setting_json(settings.fastest)}};
}

OrderedJson choices_json(const std::vector<plan::PricedChoice>& choices) {
  OrderedJson json = OrderedJson::array();
  for (const plan::PricedChoice& choice : choices) json.push_back(train::to_json(choice));
  return json;
}

OrderedJson first_json(const plan::MemoryDecision& decision) {
  if (!decision.decisions.first) return nullptr;
  return {{"recompute", choices_json(decision.first_choices)},
          {"added_seconds", decision.first_added_seconds}};
}

template <class Map>
OrderedJson bytes_json(const Map& map, const char* name_of_empty) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [key, bytes] : map) json[key.empty() ? name_of_empty : key] = bytes;
  return json;
}

std::string ranks_table(const ModelPlan& planned) {
  if (planned.mesh.world() == 1) return "";
  const std::string out = fmt::format(
      "ranks        {}: {}; each has {}\n", planned.mesh.world(), spec::to_string(planned.mesh),
      planned.run.parallel.local_ranks > 1 ? "its part of this process"
                                           : "a process such as this one");
  return out + train::to_string(planned.exchanges);
}

OrderedJson ranks_json(const ModelPlan& planned) {
  const spec::Mesh& mesh = planned.mesh;
  OrderedJson exchanges = OrderedJson::array();
  for (const train::PlannedExchange& exchange : planned.exchanges)
    exchanges.push_back({{"name", exchange.name},
                         {"kind", comm::to_string(exchange.kind)},
                         {"method", comm::to_string(exchange.method)},
                         {"reason", exchange.reason},
                         {"group", spec::to_string(exchange.axes)},
                         {"ranks", exchange.num_ranks},
                         {"bytes", exchange.bytes},
                         {"sent_bytes", exchange.sent_bytes},
                         {"count", exchange.count}});
  return {{"world", mesh.world()},
          {"local", planned.run.parallel.local_ranks},
          {"mesh",
           {{"tensor", mesh.tensor},
            {"context", mesh.context},
            {"data", mesh.data},
            {"pipeline", mesh.pipeline},
            {"expert", mesh.expert}}},
          {"sent_bytes", train::sent_bytes(planned.exchanges)},
          {"exchanges", std::move(exchanges)}};
}

void add_note(ModelPlan& plan, const std::string& note) {
  plan.note += (plan.note.empty() ? "" : "; ") + note;
}

// Entries of sparsity.weights, with the density that shapes can give.
OrderedJson sparsity_json(const ModelPlan& planned) {
  OrderedJson json = OrderedJson::array();
  for (const train::MaskedUnits& units :
       train::masked_units(planned.plan.training.graph, planned.run))
    json.push_back({{"units", units.entry.units},
                    {"pattern", std::string(to_string(units.entry.pattern))},
                    {"density", units.reached(units.entry.density)},
                    {"weights", units.weights.size()},
                    {"elements", units.num_elements()}});
  return json;
}

}  // namespace

std::int64_t ModelPlan::tokens() const {
  return run.train.micro_batch_size * run.train.gradient_accumulation_steps *
         run.data.sequence_length * mesh.data;
}

plan::Outcome<ModelPlan> plan_model(train::RunConfig run, bool finds_smallest) {
  ModelPlan result;
  // Before anything is planned: what any process of this binary holds.
  std::int64_t process_bytes = device::current_resident_bytes();
  const double begin = seconds_now();
  result.config = train::load_run_model(run);
  // Data that can be opened are, as `train` opens them.
  const std::int64_t before_data_bytes = device::current_resident_bytes();
  const auto data = train::open_tokenized(run.data.train, run, result.config),
             validation = train::open_tokenized(run.data.validation, run, result.config);
  const std::int64_t data_bytes =
      data || validation
          ? std::max<std::int64_t>(device::current_resident_bytes() - before_data_bytes, 0)
          : 0;
  process_bytes += data_bytes;
  train::require_supported_by_ranks(run);
  train::require_supported_by_ranks(run, result.config);
  train::MeshLimits limits{.num_experts = model::num_experts(result.config.spec)};
  if (data) limits.num_samples = data->num_samples();
  result.mesh = train::mesh_of(run, limits);
  // Ranks that are not threads of this process are processes of a launcher.
  const bool has_mpi = result.mesh.world() > 1 && run.parallel.local_ranks == 1;
  const std::int64_t mpi_bytes =
      has_mpi ? comm::expected_mpi_bytes(result.mesh.world(), result.mesh.expert > 1) : 0;
  process_bytes += mpi_bytes;
  const train::RunConfig own = train::of_one_thread(run, process_bytes);
  const train::Machine machine =
      train::priced_machine(device::describe_cpu(static_cast<int>(own.device.threads)),
                            {.process_bytes = process_bytes,
                             .data_bytes = data_bytes,
                             .mpi_bytes = mpi_bytes,
                             .finds_smallest = finds_smallest},
                            run.parallel.local_ranks);
  result.device = machine.device;
  result.price_source = machine.price_source;
  result.available_bytes = device::available_bytes() + process_bytes - mpi_bytes;
  plan::Outcome<train::BudgetedRun> budgeted = train::plan_as_asked(own, result.config, machine);
  if (!budgeted) return budgeted.refusal();
  result.plan = std::move(budgeted->plan);
  result.memory = std::move(budgeted->memory);
  result.note = std::move(budgeted->note);
  train::add_other_ranks(result.memory, run.parallel.local_ranks - 1);
  (void)train::choose_methods(result.plan.training.program, result.mesh,
                              train::method_policy(run, run.parallel.local_ranks == 1));
  result.exchanges = train::planned_exchanges(result.plan.training, result.mesh,
                                              run.train.gradient_accumulation_steps);
  if (run.memory.budget < 0 && result.memory.peak_bytes > result.available_bytes)
    add_note(result, "train would choose a plan that fits into the available memory");
  if (const std::int64_t disk_bytes = result.plan.training.plan.disk_bytes; disk_bytes > 0) {
    const train::SwapPlace place = train::find_swap_place(run);
    if (!place.refusal.empty())
      add_note(result, "train would refuse: " + place.refusal);
    else if (place.free_bytes < disk_bytes)
      add_note(result, fmt::format("train would refuse: memory.swap_directory has {} free",
                                   format_bytes(place.free_bytes)));
  }
  result.price = train::price_run(run, result.plan.training, result.device, machine.efficiency);
  result.model_flops = model_flops(run, result.config) * result.mesh.data;
  result.run = std::move(run);
  result.planning_seconds = seconds_now() - begin;
  return result;
}

train::SettingsFound find_settings(const train::RunConfig& asked, std::int64_t budget_bytes) {
  const train::Setting given{asked.train.micro_batch_size, asked.data.sequence_length};
  train::SettingsLimits limits;
  if (const model::ModelConfig config = model::load_config(asked.model.path);
      config.max_position_embeddings > 0)
    limits.sequence_length = config.max_position_embeddings;
  return train::search_settings(given, limits, [&](const train::Setting& setting) {
    train::RunConfig run = asked;
    run.train.micro_batch_size = setting.micro_batch_size;
    run.data.sequence_length = setting.sequence_length;
    run.compiler.dump.clear();
    run.compiler.explain_dispatch = false;
    train::Trial trial{.setting = setting};
    if (!train::problems_of(run).empty()) return trial;
    run.memory.budget = budget_bytes;
    run.memory.plan.clear();
    const LogScope silence([](Severity, const std::string&) {});
    const plan::Outcome<ModelPlan> plan = plan_model(run, false);
    if (!plan) return trial;
    trial.peak_bytes = plan->memory.peak_bytes;
    trial.fits = trial.peak_bytes <= budget_bytes;
    trial.step_seconds = plan->price.seconds;
    trial.tokens_per_second = static_cast<double>(plan->tokens()) / plan->price.seconds;
    return trial;
  });
}

train::PlanFile plan_file(const ModelPlan& planned) {
  return train::make_plan_file(planned.run, planned.config, planned.device, planned.plan.training,
                               planned.memory, planned.price.seconds);
}

std::string to_table(const ModelPlan& planned, const train::SettingsFound* settings) {
  const plan::Plan& plan = planned.plan.training.plan;
  const train::RunConfig& run = planned.run;
  std::string out = fmt::format(
      "model        {}, {} parameters, {} active a token\n"
      "step         {} x {} tokens, {} micro-batch{}, {}, {} threads\n",
      planned.config.model_type, planned.config.counts.total, planned.config.counts.active,
      run.train.micro_batch_size, run.data.sequence_length, run.train.gradient_accumulation_steps,
      run.train.gradient_accumulation_steps == 1 ? "" : "es", run.train.precision,
      planned.device.num_threads);
  out += ranks_table(planned);
  if (planned.config.adapter)
    out += fmt::format("adapter      {} parameters, next to weights held as lora.base: {}\n",
                       planned.config.adapter->num_elements(), run.lora.base);
  if (const std::string dropout = train::dropout_to_string(run, planned.config); !dropout.empty())
    out += fmt::format("dropout      {}\n", dropout);
  if (planned.config.key_blocks)
    out += fmt::format("attention    {}\n",
                       train::key_blocks_text(planned.config, run.data.sequence_length));
  for (const std::string& line : train::sparsity_lines(planned.plan.training.graph, run))
    out += fmt::format("sparsity     {}\n", line);
  out += fmt::format("memory       predicted peak {} of {} available, of which\n{}",
                     format_bytes(planned.memory.peak_bytes), format_bytes(planned.available_bytes),
                     train::to_string(planned.memory));
  if (!planned.note.empty()) out += fmt::format("plan         {}\n", planned.note);
  if (const std::string choices = plan::to_string(planned.plan.training.memory); !choices.empty())
    out += fmt::format("not kept     for the backward, predicted {:+.3g} s a micro-batch\n{}",
                       planned.plan.training.memory.added_seconds, choices);
  if (const std::string tier = train::disk_to_string(run, planned.plan.training, planned.price);
      !tier.empty())
    out += fmt::format("on disk      {}\n", tier);
  out += fmt::format("places       planned bytes of a step, at its peak\n{}",
                     train::places_to_string(planned.memory.step));
  out += fmt::format("arena        {} placed over {} alive at most: {:.3f}\n",
                     format_bytes(plan.frame_bytes), format_bytes(plan.frame_live_bytes),
                     ratio(plan.frame_bytes, plan.frame_live_bytes));
  out += fmt::format(
      "time         predicted step {:.3g} s: forward {:.3g}, backward {:.3g}, update {:.3g}, "
      "disk {:.3g}; {:.0f} tokens/s ({})\n",
      planned.price.seconds, planned.price.forward_seconds, planned.price.backward_seconds,
      planned.price.update_seconds, planned.price.disk_seconds,
      static_cast<double>(planned.tokens()) / planned.price.seconds, planned.price_source);
  out += fmt::format("FLOPs        {:.4g} a step of the model, {:.4g} of its kernels\n",
                     planned.model_flops, planned.price.flops * planned.mesh.data);
  out += fmt::format("planned in   {:.2f} s\n", planned.planning_seconds);
  if (settings) out += settings_table(*settings);
  return out;
}

std::string to_json(const ModelPlan& planned, const train::SettingsFound* settings) {
  const plan::Plan& plan = planned.plan.training.plan;
  const train::RunConfig& run = planned.run;
  OrderedJson table = OrderedJson::array();
  for (const train::MemoryRow& row : planned.memory.rows)
    table.push_back({{"name", row.name}, {"what", row.what}, {"bytes", row.bytes}});
  OrderedJson saved = OrderedJson::object();
  for (const auto& [layer, bytes] : planned.memory.step.saved_by_layer)
    saved[layer < 0 ? "outside" : fmt::format("layers.{}", layer)] = bytes;
  OrderedJson json{
      {"model_type", planned.config.model_type},
      {"parameters", planned.config.counts.total},
      {"active_parameters", planned.config.counts.active},
      {"run",
       {{"micro_batch_size", run.train.micro_batch_size},
        {"sequence_length", run.data.sequence_length},
        {"gradient_accumulation_steps", run.train.gradient_accumulation_steps},
        {"precision", run.train.precision},
        {"threads", planned.device.num_threads}}},
      {"sparsity", sparsity_json(planned)},
      {"peak_bytes", planned.memory.peak_bytes},
      {"available_bytes", planned.available_bytes},
      {"table", std::move(table)},
      {"peak", {{"call", planned.memory.step.peak_position}, {"op", planned.memory.step.peak_op}}},
      {"planned_bytes", planned.memory.step.peak_bytes},
      {"recompute", choices_json(planned.plan.training.memory.choices)},
      {"first_micro_batch", first_json(planned.plan.training.memory)},
      {"optimizer_state",
       {{"tier", plan.windows.empty() ? "memory" : "disk"},
        {"disk_bytes", plan.disk_bytes - train::offloaded_bytes(plan)}}},
      {"activations", {{"disk_bytes", train::offloaded_bytes(plan)}}},
      {"bytes_by_layer", bytes_json(planned.memory.step.by_layer, "outside")},
      {"bytes_by_segment", bytes_json(planned.memory.step.by_segment, "other")},
      {"saved_bytes_by_layer", std::move(saved)},
      {"arena",
       {{"bytes", plan.frame_bytes},
        {"live_bytes", plan.frame_live_bytes},
        {"ratio", ratio(plan.frame_bytes, plan.frame_live_bytes)}}},
      {"step",
       {{"seconds", planned.price.seconds},
        {"forward_seconds", planned.price.forward_seconds},
        {"backward_seconds", planned.price.backward_seconds},
        {"update_seconds", planned.price.update_seconds},
        {"disk_seconds", planned.price.disk_seconds},
        {"tokens", planned.tokens()},
        {"tokens_per_second", static_cast<double>(planned.tokens()) / planned.price.seconds},
        {"model_flops", planned.model_flops},
        {"kernel_flops", planned.price.flops * planned.mesh.data},
        {"prices", planned.price_source}}},
      {"planning_seconds", planned.planning_seconds},
      {"ranks", ranks_json(planned)}};
  if (settings) json["settings"] = settings_json(*settings);
  return dump_json(json);
}

std::string to_table(const plan::Refusal& refusal, const train::SettingsFound& settings) {
  return fmt::format("refused      {}\n{}", plan::to_string(refusal), settings_table(settings));
}

std::string to_json(const plan::Refusal& refusal, const train::SettingsFound& settings) {
  return dump_json(
      OrderedJson{{"refused", plan::to_string(refusal)}, {"settings", settings_json(settings)}}, 2);
}

}  // namespace anabatic::cli
