// SPDX-License-Identifier: Apache-2.0
#include "train/plan_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace anabatic::train {
namespace {

constexpr int kFormat = 7;
constexpr std::int64_t kMostFileBytes = std::int64_t{64} << 20;

// Keys of the run config that change which values there are, how large they are, or where they are.
constexpr const char* kStepKeys[] = {"data.sequence_length",
                                     "train.micro_batch_size",
                                     "train.gradient_accumulation_steps",
                                     "train.precision",
                                     "train.balance_loss",
                                     "train.balance_coef",
                                     "train.router_z_loss_coef",
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

// Reads members of one object; errors say which.
class Reader {
 public:
  Reader(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    ANABATIC_REQUIRE(json_.is_object(), "[plan file] {}: expected an object, found {}", place_,
                     json_.type_name());
  }

  const Json& member(const char* name, Json::value_t type) const {
    const auto found = json_.find(name);
    ANABATIC_REQUIRE(found != json_.end(), "[plan file] {}: expected a member {}, found none",
                     place_, name);
    const bool is_of_type = type == Json::value_t::number_float     ? found->is_number()
                            : type == Json::value_t::number_integer ? found->is_number_integer()
                                                                    : found->type() == type;
    ANABATIC_REQUIRE(is_of_type, "[plan file] {}: {}: expected {}, found {}", place_, name,
                     Json(type).type_name(), found->type_name());
    return *found;
  }
  bool has(const char* name) const { return json_.contains(name); }
  const std::string& place() const { return place_; }
  std::string string(const char* name) const {
    return member(name, Json::value_t::string).get<std::string>();
  }
  std::int64_t integer(const char* name) const {
    const Json& value = member(name, Json::value_t::number_integer);
    ANABATIC_REQUIRE(!value.is_number_unsigned() ||
                         value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max(),
                     "[plan file] {}: {}: expected a number below 2^63, found {}", place_, name,
                     show_json(value));
    return value.get<std::int64_t>();
  }
  // Not negative, so that differences do not overflow.
  std::int64_t num_bytes(const char* name) const {
    const std::int64_t value = integer(name);
    ANABATIC_REQUIRE(value >= 0, "[plan file] {}: {}: expected a number of bytes, found {}", place_,
                     name, value);
    return value;
  }
  std::int32_t integer_32(const char* name) const {
    const std::int64_t value = integer(name);
    ANABATIC_REQUIRE(0 <= value && value <= std::numeric_limits<std::int32_t>::max(),
                     "[plan file] {}: {}: expected a number from 0 to 2147483647, found {}", place_,
                     name, value);
    return static_cast<std::int32_t>(value);
  }
  bool boolean(const char* name) const { return member(name, Json::value_t::boolean).get<bool>(); }
  double number(const char* name) const {
    return member(name, Json::value_t::number_float).get<double>();
  }
  Reader object(const char* name) const {
    return {member(name, Json::value_t::object), place_ + ": " + name};
  }
  std::vector<std::string> strings(const char* name) const {
    std::vector<std::string> result;
    for (const Json& item : member(name, Json::value_t::array)) {
      ANABATIC_REQUIRE(item.is_string(), "[plan file] {}: {}: expected strings, found {}", place_,
                       name, item.type_name());
      result.push_back(item.get<std::string>());
    }
    return result;
  }
  template <class Read>
  void for_each(const char* name, const Read& read) const {
    for (const Json& item : member(name, Json::value_t::array))
      read(Reader(item, place_ + ": " + name));
  }

 private:
  const Json& json_;
  std::string place_;
};

std::string signed_bytes(std::int64_t bytes) {
  return (bytes < 0 ? "-" : "+") + format_bytes(bytes < 0 ? -bytes : bytes);
}

std::string choice_line(char sign, const plan::PricedChoice& choice) {
  return fmt::format("  {} {:<40} {:>12}, {:+.1f} ms\n", sign, choice.label(),
                     format_bytes(choice.bytes), 1e3 * choice.seconds);
}

// The way that member `name` says, one of `ways`.
plan::Way way_of(const Reader& from, const char* name, std::initializer_list<plan::Way> ways) {
  const std::string word = from.string(name);
  const auto way = plan::way_of(word);
  std::vector<std::string_view> words;
  for (const plan::Way expected : ways) words.push_back(plan::to_string(expected));
  ANABATIC_REQUIRE(way && std::find(ways.begin(), ways.end(), *way) != ways.end(),
                   "[plan file] {}: {}: expected {}, found {}", from.place(), name,
                   fmt::join(words, " or "), word);
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
  const auto packings = [](const PlanFile& plan) {
    return plan.decisions.pack_transposed ? "kept" : "repacked in the backward";
  };
  if (before.decisions.pack_transposed != after.decisions.pack_transposed)
    text += fmt::format("    second packings: {} -> {}\n", packings(before), packings(after));
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
                    fmt::format("{:016x}", ir::hash(model::build_graph(config, request.build))));
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

OrderedJson to_json(const spec::MicroBatchDecisions& decisions) {
  OrderedJson saved_as = OrderedJson::object(), slices = OrderedJson::object();
  for (const auto& [key, form] : decisions.saved_as)
    saved_as[key] = plan::to_string(plan::way_of(form));
  for (const auto& [key, count] : decisions.slices) slices[key] = count;
  return {{"recompute", decisions.recompute},
          {"saved_as", std::move(saved_as)},
          {"slices", std::move(slices)}};
}

spec::MicroBatchDecisions read_decisions(const Reader& from) {
  spec::MicroBatchDecisions result;
  for (const std::string& key : from.strings("recompute")) result.recompute.insert(key);
  using enum plan::Way;
  for (const auto& [key, json] : from.member("saved_as", Json::value_t::object).items())
    result.saved_as[key] =
        form_of(way_of(from.object("saved_as"), key.c_str(), {kBFloat16, kInt8, kDisk}));
  for (const auto& [key, count] : from.member("slices", Json::value_t::object).items())
    result.slices[key] = from.object("slices").integer_32(key.c_str());
  return result;
}

plan::PricedChoice read_choice(const Reader& from) {
  using enum plan::Way;
  const plan::Way way = way_of(from, "how", {kAgain, kBFloat16, kInt8, kDisk, kSlices});
  return {{from.string("name"), way, way == kSlices ? from.integer("slices") : 0},
          from.integer("bytes"),
          from.number("seconds")};
}

}  // namespace

std::string to_json(const PlanFile& plan) {
  OrderedJson step = OrderedJson::object(), choices = OrderedJson::array(),
              rows = OrderedJson::array(), offloads = OrderedJson::object();
  OrderedJson decisions = to_json(static_cast<const spec::MicroBatchDecisions&>(plan.decisions));
  if (plan.decisions.first) decisions["first_micro_batch"] = to_json(*plan.decisions.first);
  for (const auto& [key, span] : plan.decisions.offloads)
    offloads[key] = {{"written_by", span.written_by}, {"read_at", span.read_at}};
  decisions.update({{"offloads", std::move(offloads)},
                    {"pack_transposed", plan.decisions.pack_transposed},
                    {"state_on_disk", plan.decisions.state_on_disk},
                    {"masters_on_disk", plan.decisions.masters_on_disk},
                    {"parameters_on_disk", plan.decisions.parameters_on_disk},
                    {"resident_parameters", plan.decisions.resident_parameters},
                    {"num_windows", plan.decisions.num_windows},
                    {"resident_bytes", plan.decisions.resident_bytes},
                    {"on_disk", plan.on_disk}});
  for (const auto& [name, value] : plan.step) step[name] = value;
  for (const plan::PricedChoice& choice : plan.choices) choices.push_back(to_json(choice));
  for (const MemoryRow& row : plan.rows)
    rows.push_back({{"name", row.name}, {"what", row.what}, {"bytes", row.bytes}});
  const OrderedJson json{{"format", kFormat},
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
  const Json json = try_parse_json(read_file(file, kMostFileBytes));
  ANABATIC_REQUIRE(!json.is_discarded(),
                   "[plan file] {}: expected JSON as `anabatic plan --save` writes it, found other "
                   "text",
                   file.string());
  const Reader top(json, file.string());
  ANABATIC_REQUIRE(top.integer("format") == kFormat, "[plan file] {}: expected format {}, found {}",
                   file.string(), kFormat, top.integer("format"));
  PlanFile plan;
  const Reader step = top.object("step");
  for (const auto& [name, value] : top.member("step", Json::value_t::object).items())
    plan.step.emplace_back(name, step.string(name.c_str()));
  const Reader decisions = top.object("decisions"), predicted = top.object("predicted");
  static_cast<spec::MicroBatchDecisions&>(plan.decisions) = read_decisions(decisions);
  if (decisions.has("first_micro_batch"))
    plan.decisions.first = read_decisions(decisions.object("first_micro_batch"));
  plan.decisions.pack_transposed = decisions.boolean("pack_transposed");
  for (const auto& [key, value] : decisions.member("offloads", Json::value_t::object).items()) {
    const Reader span(value, fmt::format("{}: decisions: offloads: {}", file.string(), key));
    plan.decisions.offloads[key] = {span.integer_32("written_by"), span.integer_32("read_at")};
  }
  plan.decisions.state_on_disk = decisions.boolean("state_on_disk");
  plan.decisions.masters_on_disk = decisions.boolean("masters_on_disk");
  plan.decisions.parameters_on_disk = decisions.boolean("parameters_on_disk");
  for (const std::string& name : decisions.strings("resident_parameters"))
    plan.decisions.resident_parameters.insert(name);
  plan.decisions.num_windows = decisions.integer_32("num_windows");
  plan.decisions.resident_bytes = decisions.num_bytes("resident_bytes");
  plan.on_disk = decisions.strings("on_disk");
  std::sort(plan.on_disk.begin(), plan.on_disk.end());
  plan.plan_hash = predicted.string("plan_hash");
  plan.peak_bytes = predicted.num_bytes("peak_bytes");
  plan.step_bytes = predicted.num_bytes("step_bytes");
  plan.step_seconds = predicted.number("step_seconds");
  plan.added_seconds = predicted.number("added_seconds");
  predicted.for_each("choices",
                     [&](const Reader& choice) { plan.choices.push_back(read_choice(choice)); });
  std::int64_t sum = 0;
  predicted.for_each("table", [&](const Reader& row) {
    plan.rows.push_back({row.string("name"), row.string("what"), row.num_bytes("bytes")});
    ANABATIC_REQUIRE(!__builtin_add_overflow(sum, plan.rows.back().bytes, &sum),
                     "[plan file] {}: expected rows of less than 2^63 bytes together", row.place());
  });
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
