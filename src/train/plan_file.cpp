// SPDX-License-Identifier: Apache-2.0
#include "train/plan_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/json_node.h"
#include "base/text.h"
#include "train/objective/run_model.h"

namespace anabatic::train {
namespace {

constexpr int kPlanFormat = 9;
constexpr std::int64_t kMostPlanBytes = std::int64_t{64} << 20;

// Keys of the run config that change which values there are, how large they are, or where they are.
constexpr const char* kStepKeys[] = {"data.sequence_length",
                                     "train.micro_batch_size",
                                     "train.gradient_accumulation_steps",
                                     "train.gradient_leaves",
                                     "train.precision",
                                     "train.balance_loss",
                                     "train.balance_coef",
                                     "train.router_z_loss_coef",
                                     "train.mtp_loss_coef",
                                     "model.keep_mtp",
                                     "optimizer.state_precision",
                                     "optimizer.update",
                                     "memory.optimizer_state",
                                     "memory.masters",
                                     "memory.parameters",
                                     "memory.swap_windows",
                                     "memory.swap_slice",
                                     "memory.compress",
                                     "memory.activations",
                                     "compiler.disable_passes",
                                     "compiler.trivial_planners"};

// Not negative, so that differences do not overflow.
std::int64_t num_bytes(const JsonNode& node) { return node.as_integer(0); }
std::int32_t integer_32(const JsonNode& node) {
  return static_cast<std::int32_t>(node.as_integer(0, std::numeric_limits<std::int32_t>::max()));
}

std::string signed_bytes(std::int64_t bytes) {
  return (bytes < 0 ? "-" : "+") + format_bytes(bytes < 0 ? -bytes : bytes);
}

std::string choice_line(char sign, const plan::PricedChoice& choice) {
  return fmt::format("  {} {:<40} {:>12}, {:+.1f} ms\n", sign, choice.label(),
                     format_bytes(choice.bytes), 1e3 * choice.seconds);
}

// One of `ways`.
plan::Way way_of(const JsonNode& node, std::initializer_list<plan::Way> ways) {
  const auto way = plan::way_of(node.as_string());
  std::vector<std::string_view> words;
  for (const plan::Way expected : ways) words.push_back(plan::to_string(expected));
  if (!way || std::find(ways.begin(), ways.end(), *way) == ways.end())
    node.refuse(fmt::format("{}", fmt::join(words, " or ")));
  return *way;
}

std::string identity_difference(const StepIdentity& expected, const StepIdentity& found,
                                const char* expected_word, const char* found_word) {
  const std::map<std::string, std::string> other(found.begin(), found.end());
  std::set<std::string> seen;
  std::string text;
  const auto line = [&](const std::string& name, const std::string& a, const std::string& b) {
    if (a != b) text += fmt::format("\n  {}: {} {}, {} {}", name, expected_word, a, found_word, b);
  };
  for (const auto& [name, value] : expected) {
    seen.insert(name);
    const auto it = other.find(name);
    line(name, value, it == other.end() ? "none" : it->second);
  }
  for (const auto& [name, value] : found)
    if (!seen.contains(name)) line(name, "none", value);
  return text;
}

std::string choices_difference(const PlanFile& before, const PlanFile& after) {
  std::string text;
  const auto only_in = [&](const PlanFile& here, const PlanFile& there, char sign) {
    for (const plan::PricedChoice& choice : here.choices)
      if (std::none_of(there.choices.begin(), there.choices.end(),
                       [&](const plan::ChoiceId& other) { return other == choice; }))
        text += choice_line(sign, choice);
    for (const std::string& state : here.on_disk)
      if (!std::binary_search(there.on_disk.begin(), there.on_disk.end(), state))
        text += fmt::format("  {} {:<40} on disk\n", sign, state);
  };
  const auto packings = [](bool is_kept, const char* otherwise) {
    return is_kept ? "kept" : otherwise;
  };
  const auto second = [&](const PlanFile& plan) {
    return packings(plan.decisions.pack_transposed, "repacked in the backward");
  };
  if (before.decisions.pack_transposed != after.decisions.pack_transposed)
    text += fmt::format("    second packings: {} -> {}\n", second(before), second(after));
  const auto all = [&](const PlanFile& plan) {
    return packings(plan.decisions.keep_packings, "made in each micro-batch");
  };
  if (before.decisions.keep_packings != after.decisions.keep_packings)
    text += fmt::format("    packings: {} -> {}\n", all(before), all(after));
  const auto norms = [](const PlanFile& plan) {
    return plan.decisions.norms_in_products
               ? fmt::format("{}", plan.decisions.norms_in_products->size())
               : std::string("as predicted");
  };
  if (before.decisions.norms_in_products != after.decisions.norms_in_products)
    text += fmt::format("    norms in products: {} -> {}\n", norms(before), norms(after));
  const auto first = [](const PlanFile& plan) -> std::string {
    if (!plan.decisions.first) return "like the others";
    const spec::MicroBatchDecisions& own = *plan.decisions.first;
    return fmt::format("{} choices of its own",
                       own.recompute.size() + own.saved_as.size() + own.slices.size());
  };
  if (before.decisions.first != after.decisions.first)
    text += fmt::format("    first micro-batch: {} -> {}\n", first(before), first(after));
  only_in(before, after, '-');
  only_in(after, before, '+');
  return text;
}

std::string bytes_difference(const PlanFile& before, const PlanFile& after) {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> rows;
  std::vector<std::string> order;
  const auto add = [&](const MemoryRow& row, bool is_after) {
    const std::string name = row.what.empty() ? row.name : row.name + ", " + row.what;
    const auto [it, is_new] = rows.try_emplace(name);
    if (is_new) order.push_back(name);
    (is_after ? it->second.second : it->second.first) += row.bytes;
  };
  for (const MemoryRow& row : before.rows) add(row, false);
  for (const MemoryRow& row : after.rows) add(row, true);
  std::string text;
  for (const std::string& name : order)
    if (const auto [a, b] = rows[name]; a != b)
      text += fmt::format("  {:<46} {:>12} -> {:>12} ({})\n", name, format_bytes(a),
                          format_bytes(b), signed_bytes(b - a));
  return text;
}

}  // namespace

StepIdentity step_identity(const RunConfig& run, const model::ModelConfig& config,
                           const spec::DeviceSpec& device) {
  StepIdentity step{{"model_type", config.model_type}};
  const auto add = [&](const std::string& name, std::int64_t value) {
    step.emplace_back(name, std::to_string(value));
  };
  for (const auto& [name, value] : config.sizes) add(name, value);
  for (const char* name : kStepKeys)
    for (const ConfigKey& key : config_keys())
      if (key.name == name) step.emplace_back(name, key.show(run));
  std::set<std::string> off = run.fusions.off;
  step.emplace_back("fusions off", fmt::format("[{}]", fmt::join(off, ", ")));
  step.emplace_back("device.kind", device.kind);
  add("device.threads", device.num_threads);
  step.emplace_back("instruction sets", fmt::format("{}", fmt::join(device.instruction_sets, " ")));
  // What config.json determines in addition to the above.
  const ModelSession::CompileRequest request = training_request(run, config);
  step.emplace_back("graph",
                    fmt::format("{:016x}", ir::hash(forward_graph(run, config, request.build))));
  return step;
}

std::string plan_hash(const lower::Compiled& training) {
  std::uint64_t hash = plan::hash(training.graph, training.plan);
  if (training.first) hash = 31 * hash + plan::hash(training.first->graph, training.first->plan);
  return fmt::format("{:016x}", hash);
}

std::vector<std::string> states_on_disk(const lower::Compiled& training) {
  std::vector<std::string> names;
  for (const runtime::StateSlot& slot : training.program.states)
    if (slot.is_on_disk) names.emplace_back(text(slot.name));
  std::sort(names.begin(), names.end());
  return names;
}

PlanFile make_plan_file(const RunConfig& run, const model::ModelConfig& config,
                        const spec::DeviceSpec& device, const lower::Compiled& training,
                        const MemoryAccount& memory, double step_seconds) {
  return {.step = step_identity(run, config, device),
          .decisions = training.memory.decisions,
          .on_disk = states_on_disk(training),
          .plan_hash = plan_hash(training),
          .peak_bytes = memory.peak_bytes,
          .step_bytes = training.plan.peak_bytes(),
          .step_seconds = step_seconds,
          .added_seconds = training.memory.added_seconds,
          .choices = training.memory.choices,
          .rows = memory.rows};
}

OrderedJson to_json(const plan::PricedChoice& choice) {
  OrderedJson json{{"name", choice.name},
                   {"how", plan::to_string(choice.way)},
                   {"bytes", choice.bytes},
                   {"seconds", choice.seconds}};
  if (choice.way == plan::Way::kSlices) json["slices"] = choice.slices;
  return json;
}

namespace {

OrderedJson micro_batch_json(const spec::MicroBatchDecisions& decisions) {
  OrderedJson saved_as = OrderedJson::object(), slices = OrderedJson::object();
  for (const auto& [key, form] : decisions.saved_as)
    saved_as[key] = plan::to_string(plan::way_of(form));
  for (const auto& [key, count] : decisions.slices) slices[key] = count;
  return {{"recompute", decisions.recompute},
          {"saved_as", std::move(saved_as)},
          {"slices", std::move(slices)}};
}

spec::MicroBatchDecisions read_micro_batch(const JsonNode& from) {
  spec::MicroBatchDecisions result;
  for (const std::string& key : from.at("recompute").as_strings()) result.recompute.insert(key);
  using enum plan::Way;
  for (const auto& [key, form] : from.at("saved_as").members())
    result.saved_as[key] = form_of(way_of(form, {kBFloat16, kInt8, kDisk}));
  for (const auto& [key, count] : from.at("slices").members())
    result.slices[key] = integer_32(count);
  return result;
}

plan::PricedChoice read_choice(const JsonNode& from) {
  using enum plan::Way;
  const plan::Way way = way_of(from.at("how"), {kAgain, kBFloat16, kInt8, kDisk, kSlices});
  return {{from.at("name").as_string(), way, way == kSlices ? from.at("slices").as_integer() : 0},
          from.at("bytes").as_integer(),
          from.at("seconds").as_number()};
}

}  // namespace

OrderedJson to_json(const spec::Decisions& decisions) {
  OrderedJson json = micro_batch_json(decisions), offloads = OrderedJson::object();
  if (decisions.first) json["first_micro_batch"] = micro_batch_json(*decisions.first);
  if (!decisions.keep_packings) json["keep_packings"] = false;
  for (const auto& [key, span] : decisions.offloads)
    offloads[key] = {{"written_by", span.written_by}, {"read_at", span.read_at}};
  json.update({{"offloads", std::move(offloads)},
               {"pack_transposed", decisions.pack_transposed},
               {"state_on_disk", decisions.state_on_disk},
               {"masters_on_disk", decisions.masters_on_disk},
               {"parameters_on_disk", decisions.parameters_on_disk},
               {"resident_parameters", decisions.resident_parameters},
               {"num_windows", decisions.num_windows},
               {"resident_bytes", decisions.resident_bytes},
               {"expert_capacity", decisions.expert_capacity}});
  if (decisions.norms_in_products) json["norms_in_products"] = *decisions.norms_in_products;
  return json;
}

spec::Decisions read_decisions(const JsonNode& from) {
  spec::Decisions decisions;
  static_cast<spec::MicroBatchDecisions&>(decisions) = read_micro_batch(from);
  if (from.has("first_micro_batch"))
    decisions.first = read_micro_batch(from.at("first_micro_batch"));
  decisions.pack_transposed = from.at("pack_transposed").as_bool();
  if (from.has("keep_packings")) decisions.keep_packings = from.at("keep_packings").as_bool();
  if (const std::optional<JsonNode> norms = from.find("norms_in_products")) {
    const std::vector<std::string> names = norms->as_strings();
    decisions.norms_in_products.emplace(names.begin(), names.end());
  }
  for (const auto& [key, span] : from.at("offloads").members())
    decisions.offloads[key] = {integer_32(span.at("written_by")), integer_32(span.at("read_at"))};
  decisions.state_on_disk = from.at("state_on_disk").as_bool();
  decisions.masters_on_disk = from.at("masters_on_disk").as_bool();
  decisions.parameters_on_disk = from.at("parameters_on_disk").as_bool();
  for (const std::string& name : from.at("resident_parameters").as_strings())
    decisions.resident_parameters.insert(name);
  decisions.num_windows = integer_32(from.at("num_windows"));
  decisions.resident_bytes = num_bytes(from.at("resident_bytes"));
  decisions.expert_capacity = from.at("expert_capacity").as_number();
  return decisions;
}

std::string to_json(const PlanFile& plan) {
  OrderedJson step = OrderedJson::object(), choices = OrderedJson::array(),
              rows = OrderedJson::array();
  OrderedJson decisions = to_json(plan.decisions);
  decisions["on_disk"] = plan.on_disk;
  for (const auto& [name, value] : plan.step) step[name] = value;
  for (const plan::PricedChoice& choice : plan.choices) choices.push_back(to_json(choice));
  for (const MemoryRow& row : plan.rows)
    rows.push_back({{"name", row.name}, {"what", row.what}, {"bytes", row.bytes}});
  const OrderedJson json{{"format", kPlanFormat},
                         {"step", std::move(step)},
                         {"decisions", std::move(decisions)},
                         {"predicted",
                          {{"peak_bytes", plan.peak_bytes},
                           {"step_bytes", plan.step_bytes},
                           {"step_seconds", plan.step_seconds},
                           {"added_seconds", plan.added_seconds},
                           {"plan_hash", plan.plan_hash},
                           {"choices", std::move(choices)},
                           {"table", std::move(rows)}}}};
  return dump_json(json, 2) + "\n";
}

PlanFile read_plan_file(const std::filesystem::path& file) {
  const Json json = try_parse_json(read_file(file, kMostPlanBytes));
  const std::string place = fmt::format("[plan file] {}", file.string());
  ANABATIC_REQUIRE(!json.is_discarded(),
                   "{}: expected JSON as `anabatic plan --save` writes it, got other text", place);
  const JsonNode top(json, place);
  if (const JsonNode format = top.at("format"); format.as_integer() != kPlanFormat)
    format.refuse(fmt::format("{}", kPlanFormat));
  PlanFile plan;
  for (const auto& [name, value] : top.at("step").members())
    plan.step.emplace_back(name, value.as_string());
  const JsonNode decisions = top.at("decisions"), predicted = top.at("predicted");
  plan.decisions = read_decisions(decisions);
  plan.on_disk = decisions.at("on_disk").as_strings();
  std::sort(plan.on_disk.begin(), plan.on_disk.end());
  plan.plan_hash = predicted.at("plan_hash").as_string();
  plan.peak_bytes = num_bytes(predicted.at("peak_bytes"));
  plan.step_bytes = num_bytes(predicted.at("step_bytes"));
  plan.step_seconds = predicted.at("step_seconds").as_number();
  plan.added_seconds = predicted.at("added_seconds").as_number();
  for (const JsonNode& choice : predicted.at("choices").items())
    plan.choices.push_back(read_choice(choice));
  std::int64_t sum = 0;
  for (const JsonNode& row : predicted.at("table").items()) {
    const JsonNode bytes = row.at("bytes");
    plan.rows.push_back({row.at("name").as_string(), row.at("what").as_string(), num_bytes(bytes)});
    if (__builtin_add_overflow(sum, plan.rows.back().bytes, &sum))
      bytes.refuse("rows of less than 2^63 bytes together");
  }
  return plan;
}

void require_same_step(const PlanFile& plan, const StepIdentity& step, const std::string& file) {
  const std::string differences = identity_difference(step, plan.step, "expected", "found");
  ANABATIC_REQUIRE(differences.empty(),
                   "[plan file] {} is of another step; this run's is expected:{}", file,
                   differences);
}

void require_same_tiers(const PlanFile& plan, const lower::Compiled& training,
                        const std::string& file) {
  const std::vector<std::string> here = states_on_disk(training);
  std::string differences;
  for (const std::string& name : plan.on_disk)
    if (!std::binary_search(here.begin(), here.end(), name))
      differences += fmt::format("\n  {}: expected in memory, found on disk", name);
  for (const std::string& name : here)
    if (!std::binary_search(plan.on_disk.begin(), plan.on_disk.end(), name))
      differences += fmt::format("\n  {}: expected on disk, found in memory", name);
  ANABATIC_REQUIRE(differences.empty(),
                   "[plan file] {} has other states on disk than this run (memory.optimizer_state, "
                   "memory.hot, memory.cold):{}",
                   file, differences);
}

std::string difference(const PlanFile& before, const PlanFile& after) {
  std::string text;
  if (const std::string step = identity_difference(before.step, after.step, "was", "is");
      !step.empty())
    text += "step " + step + "\n";
  if (const std::string choices = choices_difference(before, after); !choices.empty())
    text += "choices      - taken before, + taken now\n" + choices;
  if (const std::string bytes = bytes_difference(before, after); !bytes.empty())
    text += fmt::format("bytes        peak {} -> {} ({})\n{}", format_bytes(before.peak_bytes),
                        format_bytes(after.peak_bytes),
                        signed_bytes(after.peak_bytes - before.peak_bytes), bytes);
  if (before.step_seconds != after.step_seconds)
    text += fmt::format("time         step {:.3g} s -> {:.3g} s ({:+.3g} s)\n", before.step_seconds,
                        after.step_seconds, after.step_seconds - before.step_seconds);
  if (text.empty()) return "the plans are the same\n";
  return text;
}

}  // namespace anabatic::train
