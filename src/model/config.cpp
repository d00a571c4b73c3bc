// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "model/config_fields.h"
#include "model/config_reading.h"
#include "model/declarations.h"
#include "model/gguf_model.h"
#include "model/quantization.h"

namespace anabatic::model {
namespace {

constexpr std::int64_t kLargestFile = std::int64_t{1} << 21;

std::filesystem::path config_file(const std::filesystem::path& directory_or_file) {
  std::error_code ignored;
  return std::filesystem::is_directory(directory_or_file, ignored)
             ? directory_or_file / "config.json"
             : directory_or_file;
}

CommonFields read_sizes(ConfigReader& reader, const FamilyDefaults& defaults) {
  const Range width{1, Limits::kWidth}, heads{1, Limits::kHeads};
  CommonFields fields;
  fields.vocab_size = reader.integer("vocab_size", defaults.vocab_size, {1, Limits::kPositions});
  fields.hidden_size = reader.integer("hidden_size", defaults.hidden_size, width);
  fields.intermediate_size =
      defaults.intermediate_size > 0
          ? reader.integer("intermediate_size", defaults.intermediate_size, width)
          : reader.optional_integer("intermediate_size", std::nullopt, width)
                .value_or(defaults.intermediate_size < 0 ? 0 : 4 * fields.hidden_size);
  fields.num_hidden_layers =
      reader.integer("num_hidden_layers", defaults.num_hidden_layers, {1, Limits::kLayers});
  fields.num_attention_heads =
      reader.integer("num_attention_heads", defaults.num_attention_heads, heads);
  const std::int64_t kv_fallback =
      defaults.num_key_value_heads > 0 ? defaults.num_key_value_heads : fields.num_attention_heads;
  fields.num_key_value_heads = reader.optional_integer("num_key_value_heads", kv_fallback, heads)
                                   .value_or(fields.num_attention_heads);
  fields.max_position_embeddings = reader.integer(
      "max_position_embeddings", defaults.max_position_embeddings, {1, Limits::kPositions});
  if (fields.num_attention_heads % fields.num_key_value_heads != 0)
    reader.invalid("num_key_value_heads",
                   fmt::format("expected a divisor of num_attention_heads {}, got {}",
                               fields.num_attention_heads, fields.num_key_value_heads));
  return fields;
}

// A default of 0 means hidden_size / num_attention_heads, also where the field is null.
void read_head_dim(ConfigReader& reader, CommonFields& fields, const FamilyDefaults& defaults) {
  const Range range{2, Limits::kHeads};
  const char* const key = defaults.head_dim_key;
  reader.know({"head_dim"});
  if (defaults.head_dim > 0 || reader.has(key)) {
    fields.head_dim = reader.integer(key, std::max<std::int64_t>(2, defaults.head_dim), range);
  } else {
    fields.head_dim = fields.hidden_size / fields.num_attention_heads;
    if (fields.hidden_size % fields.num_attention_heads != 0)
      reader.invalid("hidden_size", fmt::format("expected a multiple of num_attention_heads {} "
                                                "where head_dim is absent, got {}",
                                                fields.num_attention_heads, fields.hidden_size));
  }
  if (defaults.rope_theta == 0) return;
  if (fields.head_dim % 2 != 0)
    reader.invalid(key, fmt::format("expected an even number, got {}", fields.head_dim));
  fields.head_dim = std::max<std::int64_t>(2, fields.head_dim / 2 * 2);
}

// torch reads a negative padding index from the end of the vocabulary.
std::int64_t read_padding_token(ConfigReader& reader, std::int64_t vocab_size,
                                std::int64_t fallback) {
  const auto pad = reader.optional_integer("pad_token_id",
                                           fallback >= 0 ? std::optional(fallback) : std::nullopt,
                                           {-Limits::kPositions, Limits::kPositions});
  if (!pad) return -1;
  const std::int64_t id = *pad < 0 ? *pad + vocab_size : *pad;
  if (id >= 0 && id < vocab_size) return id;
  reader.invalid("pad_token_id",
                 fmt::format("expected an id below vocab_size {}, got {}", vocab_size, *pad));
  return -1;
}

void read_tokens(ConfigReader& reader, ModelConfig& config, const FamilyDefaults& defaults) {
  const Range any{-Limits::kPositions, Limits::kPositions};
  const auto or_none = [](std::int64_t id) { return id >= 0 ? std::optional(id) : std::nullopt; };
  config.bos_token_id =
      reader.optional_integer("bos_token_id", or_none(defaults.bos_token_id), any).value_or(-1);
  const bool has_eos = reader.has("eos_token_id");
  config.eos_token_ids = reader.integers("eos_token_id", any);
  if (!has_eos && !reader.is_null("eos_token_id") && defaults.eos_token_id >= 0)
    config.eos_token_ids = {defaults.eos_token_id};
}

// transformers' names (ACT2FN) of functions of a gate, whose result multiplies up, or of up alone.
struct ActivationName {
  std::string_view name;
  spec::ActivationKind gated, plain;
};
constexpr ActivationName kActivationNames[] = {
    {"silu", spec::ActivationKind::kSwiglu, spec::ActivationKind::kSilu},
    {"swish", spec::ActivationKind::kSwiglu, spec::ActivationKind::kSilu},
    {"gelu", spec::ActivationKind::kGeglu, spec::ActivationKind::kGelu},
    {"gelu_new", spec::ActivationKind::kGegluTanh, spec::ActivationKind::kGeluTanh},
    {"gelu_pytorch_tanh", spec::ActivationKind::kGegluTanh, spec::ActivationKind::kGeluTanh},
    {"relu2", spec::ActivationKind::kReglu2, spec::ActivationKind::kRelu2}};

spec::Activation read_activation(ConfigReader& reader, const FamilyDefaults& defaults) {
  const std::string name = reader.string("hidden_act", defaults.hidden_act);
  const auto* found = std::find_if(std::begin(kActivationNames), std::end(kActivationNames),
                                   [&](const ActivationName& row) { return row.name == name; });
  spec::Activation activation;
  if (found != std::end(kActivationNames)) {
    activation.kind = defaults.is_gated ? found->gated : found->plain;
  } else {
    std::string known;
    for (const ActivationName& row : kActivationNames)
      known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
    reader.unsupported("hidden_act", fmt::format("expected {}, got '{}'", known, name));
  }
  return activation;
}

CommonFields read_common(ConfigReader& reader, ModelConfig& config,
                         const FamilyDefaults& defaults) {
  CommonFields fields = read_sizes(reader, defaults);
  read_head_dim(reader, fields, defaults);
  ModelSpec& spec = config.spec;
  spec.vocab_size = fields.vocab_size;
  spec.hidden_size = fields.hidden_size;
  spec.norm_epsilon = reader.number("rms_norm_eps", defaults.rms_norm_eps, 0.0, 1.0);
  // transformers reads 0 as "not set".
  spec.initializer_range = reader.number("initializer_range", 0.02, 0.0, 1e6);
  if (spec.initializer_range == 0) spec.initializer_range = 0.02;
  spec.head.is_tied = reader.boolean("tie_word_embeddings", defaults.is_tied);
  config.dtype = reader.string("dtype", reader.string("torch_dtype", ""));
  config.max_position_embeddings = fields.max_position_embeddings;
  read_tokens(reader, config, defaults);
  spec.padding_token = read_padding_token(reader, fields.vocab_size, defaults.pad_token_id);
  fields.activation = read_activation(reader, defaults);
  return fields;
}

// By the names of config.json.
std::vector<std::pair<std::string, std::int64_t>> sizes_of(const CommonFields& fields,
                                                           const ModelSpec& spec) {
  const Moe* found = first_moe(spec);
  const Moe moe = found != nullptr ? *found : Moe{};
  return {{"vocab_size", fields.vocab_size},
          {"hidden_size", fields.hidden_size},
          {"intermediate_size", fields.intermediate_size},
          {"num_hidden_layers", fields.num_hidden_layers},
          {"num_attention_heads", fields.num_attention_heads},
          {"num_key_value_heads", fields.num_key_value_heads},
          {"head_dim", fields.head_dim},
          {"num_experts", moe.num_experts},
          {"num_experts_per_tok", moe.top_k},
          {"moe_intermediate_size", moe.width}};
}

// Fills the fields that depend on the whole model.
void finish(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  if (first_moe(config.spec) == nullptr) {
    config.output_router_logits = false;
    config.router_aux_loss_coef = 0;
  }
  config.sizes = sizes_of(fields, config.spec);
  const Declarations declared = declare(config.spec);
  if (const double rough = count_roughly(declared); rough > Limits::kParameters)
    reader.invalid("num_hidden_layers",
                   fmt::format("these sizes make a model of {:.3g} parameters, expected at most {}",
                               rough, Limits::kParameters));
  else if (reader.invalid_problems().empty())
    config.counts = count(declared);
}

// By the class of transformers that a config names. Null where it names none that is known.
const Family* family_of_class(const nlohmann::json& json) {
  const auto classes = json.find("architectures");
  if (classes == json.end() || !classes->is_array()) return nullptr;
  for (const nlohmann::json& name : *classes)
    if (const Family* family =
            name.is_string() ? find_family_of_class(name.get<std::string>()) : nullptr)
      return family;
  return nullptr;
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
                   supported(), found == json.end() ? "none" : show_json_briefly(*found));
  const Family* family = family_of(json);
  if (family == nullptr)
    throw Unsupported(fmt::format("[config] {}: model_type: expected one of {}, got {}",
                                  file.string(), supported(), show_json_briefly(*found)));
  return *family;
}

}  // namespace

std::string config_text(const std::filesystem::path& directory_or_file) {
  if (io::is_gguf(directory_or_file)) return gguf_config(io::GgufFiles::open(directory_or_file));
  std::error_code ignored;
  const std::filesystem::path file = config_file(directory_or_file);
  if (!std::filesystem::exists(file, ignored))
    throw ResourceError(
        fmt::format("[config] {}: expected a model directory with a config.json, such a file or a "
                    "GGUF file (model.path), found {}",
                    directory_or_file.string(),
                    file == directory_or_file ? "nothing of that name" : "no config.json in it"));
  return read_file(file, kLargestFile);
}

nlohmann::json read_config_json(const std::filesystem::path& directory_or_file) {
  return parse_json_object(config_text(directory_or_file),
                           fmt::format("[config] {}", config_file(directory_or_file).string()));
}

const Family* family_of(const nlohmann::json& json) {
  const auto type = json.find("model_type");
  if (type != json.end() && type->is_string())
    if (const Family* family = find_family(type->get<std::string>())) return family;
  return family_of_class(json);
}

ConfigReading read_config_as(const Family& family, const nlohmann::json& json) {
  ConfigReading reading{.reader = ConfigReader(JsonNode(json, ""), family.field_names),
                        .config = {.model_type = std::string(family.model_type)}};
  ConfigReader& reader = reading.reader;
  ModelConfig& config = reading.config;
  const CommonFields fields = read_common(reader, config, family.defaults);
  if (family.defaults.rope_theta > 0) config.spec.rope = read_rope(reader, fields, family.defaults);
  config.dropout.attention = reader.optional_number("attention_dropout", 0.0, 1.0).value_or(0.0);
  config.spec.layers.reserve(static_cast<std::size_t>(fields.num_hidden_layers));
  family.read(reader, fields, config);
  read_quantization(reader);
  reading.ignored = check_unread_fields(reader, json, fields, config);
  finish(reader, fields, config);
  return reading;
}

ModelConfig load_config(const std::filesystem::path& directory_or_file) {
  const nlohmann::json json = read_config_json(directory_or_file);
  const std::filesystem::path file = config_file(directory_or_file);
  ConfigReading reading = read_config_as(required_family(json, file), json);
  if (!reading.ignored.empty())
    log_warning("[config] unknown fields are ignored: {}", fmt::join(reading.ignored, ", "));
  if (!reading.reader.invalid_problems().empty() || !reading.reader.unsupported_problems().empty())
    fail(file, reading.reader);
  return std::move(reading.config);
}

}  // namespace anabatic::model
