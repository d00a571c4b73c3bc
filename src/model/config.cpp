// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "model/config_fields.h"
#include "model/family.h"

namespace anabatic::model {
namespace {

constexpr std::int64_t kLargestFile = std::int64_t{1} << 21;

void read_sizes(ConfigReader& reader, ModelConfig& config, const FamilyDefaults& defaults) {
  const Range width{1, Limits::kWidth}, heads{1, Limits::kHeads};
  config.vocab_size = reader.integer("vocab_size", defaults.vocab_size, {1, Limits::kPositions});
  config.hidden_size = reader.integer("hidden_size", defaults.hidden_size, width);
  config.intermediate_size = reader.integer("intermediate_size", defaults.intermediate_size, width);
  config.num_hidden_layers =
      reader.integer("num_hidden_layers", defaults.num_hidden_layers, {1, Limits::kLayers});
  config.num_attention_heads =
      reader.integer("num_attention_heads", defaults.num_attention_heads, heads);
  const std::int64_t kv_fallback =
      defaults.num_key_value_heads > 0 ? defaults.num_key_value_heads : config.num_attention_heads;
  config.num_key_value_heads = reader.optional_integer("num_key_value_heads", kv_fallback, heads)
                                   .value_or(config.num_attention_heads);
  config.max_position_embeddings = reader.integer(
      "max_position_embeddings", defaults.max_position_embeddings, {1, Limits::kPositions});
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    reader.invalid("num_key_value_heads",
                   fmt::format("expected a divisor of num_attention_heads {}, got {}",
                               config.num_attention_heads, config.num_key_value_heads));
}

// `fallback` 0: hidden_size / num_attention_heads, also where the field is null.
void read_head_dim(ConfigReader& reader, ModelConfig& config, std::int64_t fallback) {
  const Range range{2, Limits::kHeads};
  if (fallback > 0 || reader.has("head_dim")) {
    config.head_dim = reader.integer("head_dim", fallback > 0 ? fallback : 2, range);
  } else {
    reader.know({"head_dim"});
    config.head_dim = config.hidden_size / config.num_attention_heads;
    if (config.hidden_size % config.num_attention_heads != 0)
      reader.invalid("hidden_size", fmt::format("expected a multiple of num_attention_heads {} "
                                                "where head_dim is absent, got {}",
                                                config.num_attention_heads, config.hidden_size));
  }
  if (config.head_dim % 2 != 0)
    reader.invalid("head_dim", fmt::format("expected an even number, got {}", config.head_dim));
  config.head_dim = std::max<std::int64_t>(2, config.head_dim / 2 * 2);
}

// torch reads a negative padding index from the end of the vocabulary.
void read_tokens(ConfigReader& reader, ModelConfig& config, const FamilyDefaults& defaults) {
  const Range any{-Limits::kPositions, Limits::kPositions};
  const auto or_none = [](std::int64_t id) { return id >= 0 ? std::optional(id) : std::nullopt; };
  config.bos_token_id =
      reader.optional_integer("bos_token_id", or_none(defaults.bos_token_id), any).value_or(-1);
  const bool has_eos = reader.find("eos_token_id") != nullptr;
  config.eos_token_ids = reader.integers("eos_token_id", any);
  if (!has_eos && !reader.is_null("eos_token_id") && defaults.eos_token_id >= 0)
    config.eos_token_ids = {defaults.eos_token_id};
  const auto pad = reader.optional_integer("pad_token_id", std::nullopt, any);
  if (!pad) return;
  config.pad_token_id = *pad < 0 ? *pad + config.vocab_size : *pad;
  if (config.pad_token_id < 0 || config.pad_token_id >= config.vocab_size) {
    reader.invalid("pad_token_id", fmt::format("expected an id below vocab_size {}, got {}",
                                               config.vocab_size, *pad));
    config.pad_token_id = -1;
  }
}

// transformers' names of the function of gate (ACT2FN), which up is multiplied by.
constexpr std::pair<std::string_view, spec::ActivationKind> kGatedActivations[] = {
    {"silu", spec::ActivationKind::kSwiglu},
    {"swish", spec::ActivationKind::kSwiglu},
    {"gelu", spec::ActivationKind::kGeglu},
    {"gelu_new", spec::ActivationKind::kGegluTanh},
    {"gelu_pytorch_tanh", spec::ActivationKind::kGegluTanh},
    {"relu2", spec::ActivationKind::kReglu2}};

void read_activation(ConfigReader& reader, ModelConfig& config) {
  const std::string activation = reader.string("hidden_act", "silu");
  std::string known;
  for (const auto& [name, kind] : kGatedActivations) {
    if (name == activation) {
      config.activation.kind = kind;
      known.clear();
      break;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
  }
  if (!known.empty())
    reader.unsupported("hidden_act", fmt::format("expected {}, got '{}'", known, activation));
  if (reader.optional_number("attention_dropout", 0.0, 1.0).value_or(0.0) > 0)
    reader.unsupported("attention_dropout", "expected 0, got dropout in training");
}

void read_common(ConfigReader& reader, ModelConfig& config, const FamilyDefaults& defaults) {
  read_sizes(reader, config, defaults);
  read_head_dim(reader, config, defaults.head_dim);
  const auto num_layers = static_cast<std::size_t>(config.num_hidden_layers);
  config.layer_has_window.assign(num_layers, false);
  config.layer_is_moe.assign(num_layers, false);
  config.rms_norm_eps = reader.number("rms_norm_eps", defaults.rms_norm_eps, 0.0, 1.0);
  // transformers reads 0 as "not set".
  config.initializer_range = reader.number("initializer_range", 0.02, 0.0, 1e6);
  if (config.initializer_range == 0) config.initializer_range = 0.02;
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", false);
  config.dtype = reader.string("dtype", reader.string("torch_dtype", ""));
  read_tokens(reader, config, defaults);
  read_activation(reader, config);
}

// In double, so that absurd sizes cannot overflow.
double count_roughly(const ModelConfig& config) {
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double attention = 2.0 * real(config.hidden_size) * real(config.head_dim) *
                           (real(config.num_attention_heads) + real(config.num_key_value_heads));
  const double mlp = 3.0 * real(config.hidden_size) *
                     std::max(real(config.intermediate_size),
                              real(config.num_experts) * real(config.moe_intermediate_size));
  return real(config.num_hidden_layers) * (attention + mlp) +
         2.0 * real(config.vocab_size) * real(config.hidden_size);
}

void check_together(ConfigReader& reader, ModelConfig& config) {
  if (count_roughly(config) > Limits::kParameters)
    reader.invalid("num_hidden_layers",
                   fmt::format("these sizes make a model of {:.3g} parameters, expected at most {}",
                               count_roughly(config), Limits::kParameters));
  if (std::find(config.layer_is_moe.begin(), config.layer_is_moe.end(), true) !=
      config.layer_is_moe.end())
    return;
  config.num_experts = config.num_experts_per_tok = config.moe_intermediate_size = 0;
  config.output_router_logits = false;
  config.router_aux_loss_coef = 0;
}

[[noreturn]] void fail(const std::filesystem::path& file, const ConfigReader& reader) {
  std::string text = fmt::format("[config] {}:", file.string());
  for (const std::string& problem : reader.invalid_problems()) text += "\n  " + problem;
  for (const std::string& problem : reader.unsupported_problems())
    text += "\n  not supported: " + problem;
  if (reader.invalid_problems().empty()) throw Unsupported(text);
  throw InvalidArgument(text);
}

const Family& required_family(const nlohmann::json& json, const std::filesystem::path& file) {
  const auto supported = [] {
    std::vector<std::string_view> names;
    for (const Family* family : families()) names.push_back(family->model_type);
    return fmt::format("{}", fmt::join(names, ", "));
  };
  const auto found = json.find("model_type");
  ANABATIC_REQUIRE(found != json.end() && found->is_string(),
                   "[config] {}: model_type: expected one of {}, got {}", file.string(),
                   supported(), found == json.end() ? "none" : shown(*found));
  const Family* family = find_family(found->get<std::string>());
  if (family == nullptr)
    throw Unsupported(fmt::format("[config] {}: model_type: expected one of {}, got {}",
                                  file.string(), supported(), shown(*found)));
  return *family;
}

}  // namespace

ModelConfig load_config(const std::filesystem::path& directory_or_file) {
  std::error_code ignored;
  const std::filesystem::path file = std::filesystem::is_directory(directory_or_file, ignored)
                                         ? directory_or_file / "config.json"
                                         : directory_or_file;
  if (!std::filesystem::exists(file, ignored))
    throw ResourceError(
        fmt::format("[config] {}: expected a model directory with a config.json, or such a file "
                    "(model.path), found {}",
                    directory_or_file.string(),
                    file == directory_or_file ? "nothing of that name" : "no config.json in it"));
  const nlohmann::json json =
      parse_json_object(read_file(file, kLargestFile), fmt::format("[config] {}", file.string()));
  const Family& family = required_family(json, file);
  ConfigReader reader(json);
  ModelConfig config{.model_type = std::string(family.model_type)};
  read_common(reader, config, family.defaults);
  config.rope = read_rope(reader, config, family.defaults.rope_theta);
  family.read(reader, config);
  check_unread_fields(reader, json, config);
  check_together(reader, config);
  if (!reader.invalid_problems().empty() || !reader.unsupported_problems().empty())
    fail(file, reader);
  return config;
}

}  // namespace anabatic::model
