// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "model/family.h"

namespace anabatic::model {
namespace {

constexpr std::int64_t kLargestFile = std::int64_t{1} << 21;

// Fields that change the maths in other families or versions, with the value at which they do not.
// null is neutral everywhere.
struct NeutralField {
  const char* key;
  nlohmann::json neutral;
};

const std::vector<NeutralField>& neutral_fields() {
  static const std::vector<NeutralField> fields{{"add_cross_attention", false},
                                                {"attention_multiplier", 1.0},
                                                {"attn_logit_softcapping", 0.0},
                                                {"clip_qkv", 0.0},
                                                {"embedding_multiplier", 1.0},
                                                {"final_logit_softcapping", 0.0},
                                                {"is_encoder_decoder", false},
                                                {"logit_scale", 1.0},
                                                {"logits_scaling", 1.0},
                                                {"n_group", 1},
                                                {"n_shared_experts", 0},
                                                {"num_shared_experts", 0},
                                                {"per_layer_config", nlohmann::json::object()},
                                                {"qkv_bias", false},
                                                {"quantization_config", nlohmann::json::object()},
                                                {"query_pre_attn_scalar", 0},
                                                {"residual_multiplier", 1.0},
                                                {"rope_interleave", false},
                                                {"routed_scaling_factor", 1.0},
                                                {"scale_embeddings", false},
                                                {"scoring_func", "softmax"},
                                                {"shared_expert_intermediate_size", 0},
                                                {"topk_group", 1},
                                                {"use_qk_norm", false},
                                                {"use_qkv_bias", false}};
  return fields;
}

// Fields of transformers' base class, of generation and of tools that never touch the forward pass.
constexpr std::initializer_list<const char*> kHarmless = {"model_type",
                                                          "_name_or_path",
                                                          "architectures",
                                                          "auto_map",
                                                          "transformers_version",
                                                          "use_cache",
                                                          "output_attentions",
                                                          "output_hidden_states",
                                                          "return_dict",
                                                          "torchscript",
                                                          "use_bfloat16",
                                                          "tf_legacy_loss",
                                                          "pruned_heads",
                                                          "id2label",
                                                          "label2id",
                                                          "num_labels",
                                                          "problem_type",
                                                          "tokenizer_class",
                                                          "prefix",
                                                          "sep_token_id",
                                                          "decoder_start_token_id",
                                                          "finetuning_task",
                                                          "task_specific_params",
                                                          "cross_attention_hidden_size",
                                                          "is_decoder",
                                                          "tie_encoder_decoder",
                                                          "tie_last_hidden_states",
                                                          "bad_words_ids",
                                                          "begin_suppress_tokens",
                                                          "diversity_penalty",
                                                          "do_sample",
                                                          "early_stopping",
                                                          "encoder_no_repeat_ngram_size",
                                                          "exponential_decay_length_penalty",
                                                          "forced_bos_token_id",
                                                          "forced_eos_token_id",
                                                          "length_penalty",
                                                          "max_length",
                                                          "min_length",
                                                          "no_repeat_ngram_size",
                                                          "num_beam_groups",
                                                          "num_beams",
                                                          "num_return_sequences",
                                                          "output_scores",
                                                          "remove_invalid_values",
                                                          "repetition_penalty",
                                                          "return_dict_in_generate",
                                                          "suppress_tokens",
                                                          "temperature",
                                                          "top_k",
                                                          "top_p",
                                                          "typical_p",
                                                          "attn_implementation",
                                                          "_attn_implementation",
                                                          "experts_implementation",
                                                          "_experts_implementation",
                                                          "_attn_implementation_autoset",
                                                          "unsloth_version",
                                                          "unsloth_fixed",
                                                          "_commit_hash",
                                                          "_flash_attn_2_enabled",
                                                          "gradient_checkpointing",
                                                          "ep_size",
                                                          "max_sequence_length",
                                                          "tokenizer_file",
                                                          "chunk_size_feed_forward"};

bool is_neutral(const nlohmann::json& value, const nlohmann::json& neutral) {
  if (neutral.is_object()) return value.is_object() && value.empty();
  return value == neutral;  // compares numbers by value, whatever their type
}

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

void read_activation(ConfigReader& reader) {
  const std::string activation = reader.string("hidden_act", "silu");
  if (activation != "silu" && activation != "swish")
    reader.unsupported("hidden_act", fmt::format("expected silu, got '{}'", activation));
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
  read_activation(reader);
}

// What no family reads: neutral, harmless, or worth a warning. A bias or window that the family
// lacks is an error, because whoever wrote it expects another model.
void check_rest(ConfigReader& reader, const nlohmann::json& json, const ModelConfig& config) {
  for (const NeutralField& field : neutral_fields())
    if (const nlohmann::json* value = reader.find(field.key);
        value != nullptr && !is_neutral(*value, field.neutral))
      reader.unsupported(field.key, fmt::format("got {}, which {} has no place for here",
                                                shown(*value), config.model_type));
  reader.know(kHarmless);
  static const std::vector<std::string> read_by_some{"attention_bias",        "mlp_bias",
                                                     "sliding_window",        "use_sliding_window",
                                                     "num_experts",           "num_local_experts",
                                                     "moe_intermediate_size", "decoder_sparse_step",
                                                     "mlp_only_layers",       "router_jitter_noise",
                                                     "norm_topk_prob",        "layer_types"};
  std::string ignored;
  for (const std::string& key : reader.unknown_keys()) {
    const nlohmann::json& value = json.at(key);
    const bool is_off =
        value.is_null() || value == false || value == 0 || (value.is_structured() && value.empty());
    const bool is_elsewhere =
        std::find(read_by_some.begin(), read_by_some.end(), key) != read_by_some.end();
    if (key == "layer_types" && value.is_array() &&
        std::all_of(value.begin(), value.end(),
                    [](const nlohmann::json& type) { return type == "full_attention"; }) &&
        config.sliding_window == 0)
      continue;
    if (is_elsewhere && !is_off)
      reader.unsupported(
          key, fmt::format("got {}, which {} does not read", shown(value), config.model_type));
    else if (!is_elsewhere && !is_off)
      ignored += fmt::format("{}{}", ignored.empty() ? "" : ", ", key);
  }
  if (!ignored.empty())
    log_warning("[config] fields that nothing here reads are ignored: {}", ignored);
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
  constexpr const char* kSupported = "llama, mistral, qwen3, mixtral, qwen3_moe";
  const auto found = json.find("model_type");
  ANABATIC_REQUIRE(found != json.end() && found->is_string(),
                   "[config] {}: model_type: expected one of {}, got {}", file.string(), kSupported,
                   found == json.end() ? "none" : shown(*found));
  const Family* family = find_family(found->get<std::string>());
  if (family == nullptr)
    throw Unsupported(fmt::format("[config] {}: model_type: expected one of {}, got {}",
                                  file.string(), kSupported, shown(*found)));
  return *family;
}

}  // namespace

const Family* find_family(std::string_view model_type) {
  for (const Family& family : llama_families())
    if (family.model_type == model_type) return &family;
  for (const Family* family : {&mixtral_family(), &qwen3_moe_family()})
    if (family->model_type == model_type) return family;
  return nullptr;
}

void read_sliding_window(ConfigReader& reader, ModelConfig& config, std::int64_t fallback) {
  config.sliding_window =
      reader
          .optional_integer("sliding_window", fallback > 0 ? std::optional(fallback) : std::nullopt,
                            {1, Limits::kPositions})
          .value_or(0);
  std::fill(config.layer_has_window.begin(), config.layer_has_window.end(),
            config.sliding_window > 0);
}

void read_attention_bias(ConfigReader& reader, ModelConfig& config) {
  config.attention_bias = config.attention_output_bias = reader.boolean("attention_bias", false);
}

void read_experts(ConfigReader& reader, ModelConfig& config, const char* key, const char* other_key,
                  std::int64_t num_experts, std::int64_t num_experts_per_tok) {
  const Range range{0, Limits::kExperts};
  const auto other = reader.optional_integer(other_key, std::nullopt, range);
  const bool both = reader.has(key) && reader.has(other_key);
  config.num_experts = reader.integer(key, other.value_or(num_experts), range);
  if (both && other && *other != config.num_experts)
    reader.invalid(key, fmt::format("expected what {} says, {}, got {}", other_key, *other,
                                    config.num_experts));
  config.num_experts_per_tok =
      reader.integer("num_experts_per_tok", num_experts_per_tok, {1, Limits::kExperts});
  if (config.num_experts > 0 && config.num_experts_per_tok > config.num_experts)
    reader.invalid("num_experts_per_tok",
                   fmt::format("expected at most {} experts, got {}", config.num_experts,
                               config.num_experts_per_tok));
  config.output_router_logits = reader.boolean("output_router_logits", false);
  config.router_aux_loss_coef = reader.number("router_aux_loss_coef", 0.001, 0.0, 1e6);
}

ModelConfig load_config(const std::filesystem::path& directory_or_file) {
  std::error_code ignored;
  const std::filesystem::path file = std::filesystem::is_directory(directory_or_file, ignored)
                                         ? directory_or_file / "config.json"
                                         : directory_or_file;
  const std::string text = read_file(file, kLargestFile);
  const nlohmann::json json = try_parse_json(text);
  ANABATIC_REQUIRE(json.is_object(), "[config] {}: expected a JSON object, got {}", file.string(),
                   json.is_discarded() ? "text that is not JSON" : shown(json));
  const Family& family = required_family(json, file);
  ConfigReader reader(json);
  ModelConfig config{.model_type = std::string(family.model_type)};
  read_common(reader, config, family.defaults);
  config.rope = read_rope(reader, config, family.defaults.rope_theta);
  family.read(reader, config);
  check_rest(reader, json, config);
  check_together(reader, config);
  if (!reader.invalid_problems().empty() || !reader.unsupported_problems().empty())
    fail(file, reader);
  return config;
}

}  // namespace anabatic::model
