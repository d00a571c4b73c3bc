// SPDX-License-Identifier: Apache-2.0
#include "train/config/precision_keys.h"

#include "base/log.h"
#include "passes/precision/product_formats.h"
#include "train/config/config_key.h"
#include "train/loss_scale/loss_scaler.h"

namespace anabatic::train {
namespace {

ConfigKey keep_key() {
  return {.name = "precision.keep",
          .help =
              "Units whose products have another precision than train.precision, such as "
              "{attention: bf16, layers.0.experts.down: fp32}. A unit is a part of the names of "
              "weights, or a segment. The longest one that fits counts. int8 goes with "
              "train.precision: int8 and adaptive.",
          .is_list = true,
          .set =
              [](RunConfig& config, Values values) {
                std::map<std::string, std::string> keep;
                for (const std::string& text : values) {
                  const auto sign = text.find('=');
                  ANABATIC_REQUIRE(sign != std::string::npos && sign > 0,
                                   "expected UNIT=PRECISION, got '{}'", text);
                  const std::string unit = text.substr(0, sign), word = text.substr(sign + 1);
                  ANABATIC_REQUIRE(word == "int8" || word == "bf16" || word == "fp32",
                                   "expected int8, bf16 or fp32 for '{}', got '{}'", unit, word);
                  ANABATIC_REQUIRE(keep.emplace(unit, word).second, "'{}' is given twice", unit);
                }
                config.precision.keep = std::move(keep);
              },
          .show =
              [](const RunConfig& config) {
                std::string out;
                for (const auto& [unit, word] : config.precision.keep)
                  out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", yaml_quoted(unit), word);
                return fmt::format("{{{}}}", out);
              },
          .is_map = true,
          .type = "map of text",
          .allowed = "{UNIT: int8 | bf16 | fp32}"};
}

ConfigKey critical_key() {
  return strings(
      "precision.critical",
      "Units whose products are never below bf16, such as [head, layers.0.experts.down]. "
      "They are named as in precision.keep.",
      AT(precision.critical));
}

ConfigKey validation_key() {
  return choice("precision.validation",
                "Products of validations in a run with train.precision: int8 or adaptive. bf16 has "
                "the loss of the model that is saved: it makes weights in bf16 of the fp32 ones, a "
                "layer at a time. train has the products of the step. Other precisions validate as "
                "they train.",
                {"bf16", "train"}, AT(precision.validation));
}

spec::Precision precision_of(const std::string& word) {
  return word == "fp32"   ? spec::Precision::kFp32
         : word == "bf16" ? spec::Precision::kBf16
                          : spec::Precision::kInt8;
}

constexpr double kLargestLossScale = 0x1p32;

ConfigKey loss_scale_key() {
  using Keys = RunConfig::Precision;
  return or_word(
      or_word(number("precision.loss_scale",
                     "What a step's loss is multiplied by before its backward, so that gradients "
                     "of few bits do not underflow; the update undoes it. dynamic begins at 65536, "
                     "doubles after 2000 steps, and is divided by 2 with a step that is skipped "
                     "because a gradient is not finite. auto is dynamic with train.precision: fp16 "
                     "and mixed, else 1.",
                     1, kLargestLossScale, AT(precision.loss_scale)),
              "dynamic", Keys::kDynamic, AT(precision.loss_scale)),
      "auto", Keys::kByPrecision, AT(precision.loss_scale));
}

void add_adaptive_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(number("precision.adaptive.error",
                        "With train.precision: adaptive, the error that a product may have, as a "
                        "share of the norm of its result. One with two samples in a row above it "
                        "becomes more precise.",
                        1e-6, 1, AT(precision.adaptive.error)));
  keys.push_back(integer("precision.adaptive.every", "Steps from one sample of errors to the next.",
                         1, AT(precision.adaptive.every)));
  keys.push_back(integer("precision.adaptive.lock",
                         "Steps for which a product that moved stays, and least steps from one "
                         "change of the plan to the next.",
                         1, AT(precision.adaptive.lock)));
  keys.push_back(number("precision.adaptive.high_share",
                        "Most of the FLOPs of a step's products that may be above int8. Larger "
                        "errors go first.",
                        0, 1, AT(precision.adaptive.high_share)));
}

// What changes of the plan between steps do not go with.
void add_adaptive_problems(const RunConfig& config, std::vector<std::string>& problems) {
  const RunConfig::Precision::Adaptive usual, &keys = config.precision.adaptive;
  const std::string& precision = config.train.precision;
  if (!adapts_precision(config)) {
    if (keys.error != usual.error || keys.every != usual.every || keys.lock != usual.lock ||
        keys.high_share != usual.high_share)
      problems.push_back(fmt::format(
          "precision.adaptive: expected train.precision: adaptive with its keys, got {}",
          precision));
    return;
  }
  const auto refuse = [&](bool is_there, const char* key, const char* expected,
                          const std::string& got) {
    if (is_there)
      problems.push_back(fmt::format("{}: expected {} with train.precision: adaptive, got {}", key,
                                     expected, got));
  };
  refuse(config.precision.int8.fallback == RunConfig::Precision::kOff, "precision.int8.fallback",
         "a number, of which 127 is nearest to off,", "off");
  refuse(config.parallel.local_ranks > 1, "parallel.local_ranks", "1",
         std::to_string(config.parallel.local_ranks));
  refuse(config.memory.parameters == "disk", "memory.parameters", "resident or auto", "disk");
  refuse(config.memory.optimizer_state == "disk", "memory.optimizer_state", "resident or auto",
         "disk");
  refuse(!config.memory.cold.empty(), "memory.cold", "none", joined(config.memory.cold, ", "));
}

// What has no form with gradients in fp16.
void add_fp16_problems(const RunConfig& config, std::vector<std::string>& problems) {
  if (!has_gradients_in_fp16(config)) return;
  const std::string& precision = config.train.precision;
  const auto refuse = [&](bool is_there, const char* with, const char* why) {
    if (is_there)
      problems.push_back(
          fmt::format("train.precision: expected bf16 with {}, got {}: {}", with, precision, why));
  };
  refuse(trains_adapter(config), "lora", "frozen weights and adapters have no fp16 form");
  refuse(trains_on_pairs(config), "train.objective: dpo",
         "policy and reference are compared in one precision");
  refuse(!config.model.plugins.empty(), "model.plugins", "plugins take fp32 and bf16");
  refuse(config.parallel.expert > 1, "parallel.expert",
         "rows of experts are not exchanged in fp16");
  refuse(config.memory.compress != "off", "memory.compress",
         "values in fp16 are not compressed further");
  for (const auto& [unit, word] : config.precision.keep)
    if (word != "fp32")
      problems.push_back(
          fmt::format("precision.keep: expected fp32 for '{}' with train.precision: {}, got {}",
                      unit, precision, word));
}

}  // namespace

void add_precision_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(or_word(
      integer("precision.int8.fallback",
              "When blocks of a layer's input fall back to 16 bits in int8 products. One of n "
              "elements does if n times the largest exceeds this many times the sum of all. Lower "
              "values make more blocks do so; off makes none.",
              0, AT(precision.int8.fallback), RunConfig::Precision::kOff - 1),
      "off", RunConfig::Precision::kOff, AT(precision.int8.fallback)));
  keys.push_back(keep_key());
  keys.push_back(critical_key());
  keys.push_back(validation_key());
  keys.push_back(loss_scale_key());
  add_adaptive_keys(keys);
}

void add_precision_problems(const RunConfig& config, std::vector<std::string>& problems) {
  if (!config.precision.keep.empty() && config.train.precision == "fp32")
    problems.emplace_back(
        "precision.keep: expected train.precision: bf16, int8, fp16 or mixed with units that "
        "differ from it, got fp32");
  const bool is_bf16 = config.train.precision == "bf16" || config.train.precision == "auto";
  if (!config.precision.critical.empty() && !uses_int8(config) && !is_bf16)
    problems.push_back(fmt::format(
        "precision.critical: expected train.precision: int8, adaptive, or bf16, where it changes "
        "nothing, got {}",
        config.train.precision));
  if (is_bf16)
    for (const auto& [unit, word] : config.precision.keep)
      if (word == "int8")
        problems.push_back(fmt::format(
            "precision.keep: expected bf16 or fp32 for '{}' with train.precision: {}, got int8",
            unit, config.train.precision));
  if (loss_scale_of(config) == RunConfig::Precision::kDynamic &&
      config.optimizer.update == "in_backward")
    problems.emplace_back(
        "precision.loss_scale: expected a number with optimizer.update: in_backward, got dynamic: "
        "a step could not be skipped, for weights have changed before all gradients are known");
  add_fp16_problems(config, problems);
  add_adaptive_problems(config, problems);
  if (!uses_int8(config)) return;
  if (trains_adapter(config) && adapts_precision(config))
    problems.emplace_back(
        "train.precision: expected bf16 or int8 with lora, got adaptive: errors of products of "
        "frozen weights are not sampled");
  if (trains_on_pairs(config))
    problems.emplace_back(
        fmt::format("train.precision: expected bf16 with train.objective: dpo, got {}: policy and "
                    "reference are compared in one precision",
                    config.train.precision));
}

bool uses_int8(const RunConfig& config) {
  return config.train.precision == "int8" || adapts_precision(config);
}

bool adapts_precision(const RunConfig& config) { return config.train.precision == "adaptive"; }

bool validates_in_bf16(const RunConfig& config) {
  return uses_int8(config) && config.precision.validation == "bf16";
}

spec::ProductOptions validation_product_options(const RunConfig& config) {
  if (!validates_in_bf16(config)) return product_options(config);
  spec::ProductOptions options;
  for (const auto& [unit, word] : config.precision.keep)
    options.keep.emplace_back(unit,
                              word == "fp32" ? spec::Precision::kFp32 : spec::Precision::kBf16);
  return options;
}

spec::ProductOptions product_options(const RunConfig& config) {
  spec::ProductOptions options;
  options.fallback = config.precision.int8.fallback;
  for (const auto& [unit, word] : config.precision.keep)
    options.keep.emplace_back(unit, precision_of(word));
  options.critical = config.precision.critical;
  options.raised = config.precision.raised;
  return options;
}

std::string product_formats_to_string(const RunConfig& config, const ir::Graph& step) {
  const std::string& word = config.train.precision;
  const auto policy = word == "fp16"      ? spec::Precision::kFp16
                      : word == "mixed"   ? spec::Precision::kMixed
                      : uses_int8(config) ? spec::Precision::kInt8
                                          : precision_of(word);
  return passes::to_string(passes::product_formats(step, policy, product_options(config)));
}

RunConfig with_inference_precision(RunConfig config) {
  if (uses_int8(config) || has_gradients_in_fp16(config)) {
    log_info("train.precision: {} is for training; computing in bf16", config.train.precision);
    config.train.precision = "bf16";
  }
  config.precision = {};
  return config;
}

}  // namespace anabatic::train
