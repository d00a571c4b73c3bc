// SPDX-License-Identifier: Apache-2.0
#include "train/config/quantization_keys.h"

#include "train/config/config_key.h"

namespace anabatic::train {
namespace {

using Quantization = RunConfig::Quantization;

constexpr const char* kInt8Token = "int8_token";

std::vector<std::string> format_words() {
  std::vector<std::string> words{"auto"};
  for (const GridFormat format : kGridFormats) words.emplace_back(to_string(format));
  return words;
}

std::vector<std::string> group_words() {
  std::vector<std::string> words{"auto"};
  for (const std::int64_t group : kInt4Groups) words.push_back(std::to_string(group));
  return words;
}

// Without a format, what bit_num and per_channel say: 8 bits have a scale for each row.
GridFormat format_of(const Quantization& section) {
  if (section.format != "auto") return *grid_format_from_string(section.format);
  if (section.bit_num == "4") return GridFormat::kInt4Group;
  return section.per_channel == "false" ? GridFormat::kQ8_0 : GridFormat::kInt8Channel;
}

void add_contradictions(const Quantization& section, std::vector<std::string>& problems) {
  if (section.format != "auto")
    for (const auto& [key, value] :
         {std::pair{"bit_num", section.bit_num}, std::pair{"per_channel", section.per_channel}})
      if (value != "auto")
        problems.push_back(
            fmt::format("quantization.{}: expected auto with quantization.format: {}, which says "
                        "it, got {}",
                        key, section.format, value));
  if (section.per_channel == "true" && section.bit_num == "4")
    problems.emplace_back(
        "quantization.per_channel: expected false with bit_num: 4, which has a scale for each "
        "group, got true");
  if (section.group != "auto" && format_of(section) != GridFormat::kInt4Group)
    problems.push_back(
        fmt::format("quantization.group: expected auto with the format {}, which says it, got {}",
                    to_string(format_of(section)), section.group));
  if (section.units.empty())
    problems.emplace_back("quantization.units: expected units such as experts, got none");
}

}  // namespace

void add_quantization_keys(std::vector<ConfigKey>& keys) {
  keys.push_back(boolean("quantization.enable",
                         "Products of quantization.units read weights with the values that a "
                         "quantised file will hold of them. Weights that are trained stay fp32. "
                         "Those under an adapter (lora) are rounded once, as they are loaded.",
                         AT(quantization.enable)));
  keys.push_back(strings("quantization.units",
                         "Units whose weights these are, such as experts, layers.3.mlp or "
                         "experts.down. A unit is a part of the names of weights, or a segment.",
                         AT(quantization.units)));
  keys.push_back(choice("quantization.format",
                        "The grid of values. int8_channel and int4_group are exported for "
                        "compressed-tensors, q8_0 and q4_0 as GGUF, mxfp4 as both. auto is that "
                        "of quantization.bit_num.",
                        format_words(), AT(quantization.format)));
  keys.push_back(choice("quantization.group",
                        "Elements of a row that share a scale in int4_group. auto is 32.",
                        group_words(), AT(quantization.group)));
  keys.push_back(
      choice("quantization.bit_num",
             "In place of quantization.format. 8, which auto is, stands for int8_channel, or "
             "for q8_0 where quantization.per_channel is false. 4 is int4_group.",
             {"auto", "8", "4"}, AT(quantization.bit_num)));
  keys.push_back(choice("quantization.per_channel",
                        "With quantization.bit_num: true has one scale for a row, false one for "
                        "a part of it. auto is true for 8 bits and false for 4.",
                        {"auto", "true", "false"}, AT(quantization.per_channel)));
  keys.push_back(integer("quantization.quant_delay",
                         "First steps that read weights as they are, while errors are logged.", 0,
                         AT(quantization.quant_delay), std::int64_t{1} << 30));
  keys.push_back(choice("quantization.activations",
                        "What these products read of activations. int8_token: 8 bits with a scale "
                        "for each token, as runtimes quantise them while they run. off leaves "
                        "them as they are.",
                        {"off", kInt8Token}, AT(quantization.activations)));
}

void add_quantization_problems(const RunConfig& config, std::vector<std::string>& problems) {
  const Quantization &section = config.quantization, usual;
  if (!section.enable) {
    const bool is_usual = section.units == usual.units && section.format == usual.format &&
                          section.group == usual.group && section.bit_num == usual.bit_num &&
                          section.per_channel == usual.per_channel &&
                          section.quant_delay == usual.quant_delay &&
                          section.activations == usual.activations;
    if (!is_usual)
      problems.emplace_back(
          "quantization.enable: expected true where other keys of quantization are given, got "
          "false");
    return;
  }
  add_contradictions(section, problems);
  const auto expect = [&](bool holds, const char* key, const char* expected, const auto& got) {
    if (!holds)
      problems.push_back(
          fmt::format("{}: expected {} with quantization, got {}", key, expected, got));
  };
  expect(section.quant_delay < config.train.steps, "quantization.quant_delay",
         "less than train.steps", section.quant_delay);
  expect(section.quant_delay == 0 || config.precision.loss_scale != RunConfig::Precision::kDynamic,
         "precision.loss_scale",
         "auto or a number: steps that are skipped would move the end of quant_delay", "dynamic");
  expect(!has_gradients_in_fp16(config), "train.precision", "bf16, fp32 or int8",
         config.train.precision);
  expect(section.quant_delay == 0 || section.activations == "off", "quantization.quant_delay",
         "0 with quantization.activations: both begin with the first step,", section.quant_delay);
  if (trains_adapter(config)) {
    expect(section.quant_delay == 0, "quantization.quant_delay",
           "0 with lora: the weights under an adapter are rounded once, as they are loaded,",
           section.quant_delay);
    expect(config.lora.base == "auto" ||
               (config.lora.base == "mxfp4" && format_of(section) == GridFormat::kMxfp4),
           "lora.base", "auto, or mxfp4 where quantization.format is mxfp4 too,", config.lora.base);
  }
  expect(!trains_on_pairs(config), "train.objective",
         "lm or sft: the reference of dpo has other weights", config.train.objective);
}

spec::QuantizationOptions quantization_options(const RunConfig& config) {
  const Quantization& section = config.quantization;
  if (!section.enable) return {};
  const std::int64_t group = section.group == "auto" ? 32 : std::stoll(section.group);
  return {weight_grid(format_of(section), group), section.units, section.quant_delay,
          section.activations == kInt8Token};
}

}  // namespace anabatic::train
