// SPDX-License-Identifier: Apache-2.0
#include "model/lora/peft_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/json_node.h"
#include "base/text.h"

namespace anabatic::model {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostConfigBytes = std::int64_t{1} << 24;
constexpr std::int64_t kMostRank = 65536;
constexpr double kMostNumber = 1e9;  // of a pattern
// Whose layout of stacks is written.
constexpr const char* kWrittenVersion = "0.21.2";

// Read below, or without effect on what a loaded adapter computes.
constexpr std::array kKnownFields{"alpha_pattern",
                                  "auto_mapping",
                                  "base_model_name_or_path",
                                  "bias",
                                  "exclude_modules",
                                  "fan_in_fan_out",
                                  "inference_mode",
                                  "init_lora_weights",
                                  "layers_pattern",
                                  "layers_to_transform",
                                  "lora_alpha",
                                  "lora_dropout",
                                  "megatron_core",
                                  "peft_type",
                                  "peft_version",
                                  "qalora_group_size",
                                  "r",
                                  "rank_pattern",
                                  "revision",
                                  "target_modules",
                                  "target_parameters",
                                  "task_type",
                                  "use_rslora"};
// Inits that change the base weights, or keep what they take from them elsewhere.
constexpr std::array kPlainInits{"true", "false", "gaussian", "orthogonal", "eva"};

bool is_set(const Json& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  return !value.empty() && value != Json("");
}

void refuse_other_methods(const JsonNode& root) {
  const Json& json = root.value();
  if (const auto type = root.find("peft_type"); !type || type->as_string() != "LORA")
    root.unsupported("peft_type: expected LORA, got another kind of adapter");
  for (const auto& [name, value] : json.items())
    if (std::ranges::find(kKnownFields, name) == kKnownFields.end() && is_set(value))
      root.unsupported(fmt::format("{}: expected none, got {}", name, show_json_briefly(value)));
  if (const auto bias = root.find("bias"); bias && bias->as_string() != "none")
    bias->unsupported("expected none, got trained biases");
  if (const auto init = root.find("init_lora_weights")) {
    const std::string text =
        init->value().is_string() ? init->as_string() : show_json(init->value());
    if (std::ranges::find(kPlainInits, text) == kPlainInits.end())
      init->unsupported(fmt::format("expected {}, got {}", fmt::join(kPlainInits, ", "), text));
  }
}

std::vector<PeftPattern> read_patterns(const JsonNode& root, const char* key) {
  std::vector<PeftPattern> patterns;
  if (const auto found = root.find(key))
    for (const auto& [name, value] : found->members())
      patterns.push_back({name,
                          std::make_shared<io::tokenizer::Regex>(
                              fmt::format("\\A(?:.*\\.)?(?:{})\\z", name), found->place()),
                          value.as_number(0, kMostNumber)});
  return patterns;
}

// As PEFT's get_pattern_key, which takes the first one.
double value_for(const std::vector<PeftPattern>& patterns, const std::string& target,
                 double fallback) {
  const PeftPattern* found = nullptr;
  io::tokenizer::RegexScratch scratch;
  io::tokenizer::Match match;
  for (const PeftPattern& pattern : patterns) {
    if (!pattern.expression->find(target, 0, scratch, match)) continue;
    if (found != nullptr && found->value != pattern.value)
      throw Unsupported(fmt::format(
          "[lora] {}: expected one number for {}, got {} of {} and {} of "
          "{}",
          kAdapterConfig, target, found->value, found->text, pattern.value, pattern.text));
    found = &pattern;
  }
  return found == nullptr ? fallback : found->value;
}

std::string escaped(const std::string& name) {
  std::string text;
  for (const char c : name) text += c == '.' ? std::string("\\.") : std::string(1, c);
  return text;
}

// The name without its layer: "self_attn.q_proj".
std::string name_in_layer(const std::string& target, std::int64_t layer) {
  if (layer < 0) return target;
  const std::string number = fmt::format(".{}.", layer);
  const std::size_t at = target.find(number);
  return at == std::string::npos ? target : target.substr(at + number.size());
}

Json number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e9) return static_cast<std::int64_t>(value);
  return value;
}

}  // namespace

bool names_target(std::string_view name, std::string_view target) {
  return target == name || target.ends_with("." + std::string(name));
}

std::int64_t PeftConfig::rank_of(const std::string& target) const {
  return static_cast<std::int64_t>(value_for(ranks, target, static_cast<double>(rank)));
}

double PeftConfig::alpha_of(const std::string& target) const {
  return value_for(alphas, target, alpha);
}

PeftConfig read_peft_config(const fs::path& directory) {
  const fs::path file = directory / kAdapterConfig;
  std::error_code ignored;
  ANABATIC_REQUIRE(fs::is_regular_file(file, ignored),
                   "[lora] {}: expected a directory with {}, found none", directory.string(),
                   kAdapterConfig);
  return parse_peft_config(read_file(file, kMostConfigBytes),
                           fmt::format("[lora] {}", file.string()));
}

PeftConfig parse_peft_config(std::string_view text, const std::string& place) {
  const Json json = parse_json_object(text, place);
  const JsonNode root(json, place);
  refuse_other_methods(root);
  PeftConfig config{.rank = root.at("r").as_integer(1, kMostRank),
                    .alpha = root.at("lora_alpha").as_number(0, kMostNumber),
                    .divides_by_root = root.bool_or("use_rslora", false),
                    .ranks = read_patterns(root, "rank_pattern"),
                    .alphas = read_patterns(root, "alpha_pattern"),
                    .target_modules = {},
                    .target_parameters = {},
                    .version = {}};
  if (const auto targets = root.find("target_modules")) {
    config.lists_modules = targets->value().is_array();
    config.target_modules = config.lists_modules ? targets->as_strings()
                                                 : std::vector<std::string>{targets->as_string()};
  }
  if (const auto targets = root.find("target_parameters"))
    config.target_parameters = targets->as_strings();
  for (const char* key : {"layers_to_transform", "exclude_modules"})
    config.leaves_some_out |= json.contains(key) && is_set(json[key]);
  if (const auto dropout = root.find("lora_dropout")) config.dropout = dropout->as_number(0, 1);
  if (const auto version = root.find("peft_version")) config.version = version->as_string();
  return config;
}

std::string peft_config_text(const ModelConfig& config, const std::vector<PeftModule>& modules,
                             const std::vector<AdaptableTensor>& tensors, const std::string& base,
                             const NumberedExperts& experts) {
  const auto settings = [](const PeftModule& module) {
    return std::pair(module.rank(), module.alpha());
  };
  std::map<std::pair<std::int64_t, double>, std::size_t> counts;
  for (const PeftModule& module : modules) ++counts[settings(module)];
  if (experts.group != nullptr) counts = {{{experts.group->rank, experts.group->alpha}, 1}};
  const auto usual =
      std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })->first;
  const auto short_name = [](const PeftModule& module) {
    return name_in_layer(module.target, module.tensor->weights.front()->layer);
  };
  // Whether a short name stands for modules with these settings and no others.
  const auto stands_for_all = [&](const PeftModule& module) {
    const std::string name = short_name(module);
    for (const AdaptableTensor& tensor : tensors) {
      bool is_parameter = false;
      const std::string target = peft_target(config, tensor, is_parameter);
      if (is_parameter != module.is_parameter || !names_target(name, target)) continue;
      const auto same = std::ranges::find_if(
          modules, [&](const PeftModule& other) { return other.tensor == &tensor; });
      if (same == modules.end() || settings(*same) != settings(module)) return false;
    }
    return true;
  };
  std::set<std::string> target_modules(experts.modules.begin(), experts.modules.end()),
      target_parameters;
  OrderedJson ranks = OrderedJson::object(), alphas = OrderedJson::object();
  for (const PeftModule& module : modules) {
    const std::string name = stands_for_all(module) ? short_name(module) : module.target;
    (module.is_parameter ? target_parameters : target_modules).insert(name);
    if (module.rank() != usual.first) ranks[".*\\." + escaped(name)] = module.rank();
    if (module.alpha() != usual.second) alphas[".*\\." + escaped(name)] = number(module.alpha());
  }
  const OrderedJson json{
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"peft_version", kWrittenVersion},
      {"base_model_name_or_path", base},
      {"inference_mode", true},
      {"r", usual.first},
      {"lora_alpha", number(usual.second)},
      {"lora_dropout", config.adapter ? config.adapter->dropout : 0.0},
      {"use_rslora", (experts.group != nullptr ? experts.group : modules.front().groups.front())
                         ->divides_by_root},
      {"use_dora", false},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"init_lora_weights", true},
      {"modules_to_save", nullptr},
      {"target_modules", target_modules},
      {"target_parameters",
       target_parameters.empty() ? OrderedJson() : OrderedJson(target_parameters)},
      {"rank_pattern", ranks},
      {"alpha_pattern", alphas}};
  return dump_json(json, 2) + "\n";
}

}  // namespace anabatic::model
