// SPDX-License-Identifier: Apache-2.0
#include "model/config_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"

namespace anabatic::model {
namespace {

using Json = nlohmann::json;

// null is neutral everywhere.
struct NeutralField {
  const char* key;
  std::vector<Json> neutral;
};

// Properties of this model that unread fields must agree with.
struct Computed {
  const CommonFields& fields;
  std::int64_t rotary_dim = 0;
  bool qk_norm = false, has_window = false;
  std::vector<std::int64_t> windows{};  // of each layer
};

Computed computed_by(const CommonFields& fields, const ModelSpec& spec) {
  Computed computed{.fields = fields, .rotary_dim = spec.rope.rotary_dim};
  for (const LayerSpec& layer : spec.layers) {
    const auto* gqa = std::get_if<Gqa>(&layer.attention);
    computed.qk_norm |= gqa != nullptr && gqa->qk_norm != QkNorm::kNone;
    computed.windows.push_back(gqa != nullptr ? gqa->window : 0);
    computed.has_window |= computed.windows.back() > 0;
  }
  return computed;
}

// Norms, biases, scales and soft caps of other families.
std::vector<NeutralField> block_fields(const Computed& computed) {
  const CommonFields& fields = computed.fields;
  const double head_dim = static_cast<double>(fields.head_dim);
  const double depth = static_cast<double>(fields.num_hidden_layers);
  return {{"add_bias_linear", {false}},
          {"add_qkv_bias", {false}},
          {"attention_bias", {false}},
          {"attention_multiplier", {1.0 / std::sqrt(head_dim)}},
          {"attention_out_bias", {false}},
          {"attn_logit_softcapping", {0}},
          {"clip_qkv", {0}},
          {"dim_model_base", {fields.hidden_size}},
          {"embedding_multiplier", {1}},
          {"final_logit_softcapping", {0}},
          {"hidden_activation", {"silu", "swish"}},
          {"lm_head_bias", {false}},
          {"logit_scale", {1}},
          {"logits_scaling", {1}},
          {"mlp_bias", {false}},
          {"no_bias", {true}},
          {"pretraining_tp", {0, 1}},
          {"qkv_bias", {false}},
          {"query_pre_attn_scalar", {fields.head_dim}},
          {"residual_multiplier", {1}},
          {"scale_depth", {std::sqrt(depth)}},
          {"scale_emb", {1}},
          {"scale_embeddings", {false}},
          {"use_bias", {false}},
          {"use_mlp_bias", {false}},
          {"use_parallel_residual", {false}},
          {"use_post_norm", {false}},
          {"parallel_attn", {false}},
          {"qk_layernorm", {computed.qk_norm}},
          {"qk_norm", {computed.qk_norm}},
          {"use_qk_layernorm", {computed.qk_norm}},
          {"use_qk_norm", {computed.qk_norm}},
          {"use_qkv_bias", {false}}};
}

// Other kinds of attention, positions and models, and dropout.
std::vector<NeutralField> model_fields(const Computed& computed) {
  const CommonFields& fields = computed.fields;
  Json types = Json::array(), all_rope = Json::array();
  for (const std::int64_t window : computed.windows) {
    types.push_back(window > 0 ? "sliding_attention" : "full_attention");
    all_rope.push_back(1);
  }
  return {{"add_cross_attention", {false}},
          {"alibi", {false}},
          {"attention_chunk_size", {0}},
          {"attn_pdrop", {0}},
          {"attn_temperature_tuning", {false, 0}},
          {"compression_config", {Json::object()}},
          {"embd_pdrop", {0}},
          {"embedding_dropout", {0}},
          {"hidden_dropout", {0}},
          {"is_causal", {true}},
          {"is_encoder_decoder", {false}},
          {"kv_lora_rank", {0}},
          {"layer_types", {types, Json::array()}},
          {"max_window_layers", {0}},
          {"mlp_dropout", {0}},
          {"no_rope_layers", {all_rope, Json::array()}},
          {"num_kv_shared_layers", {0}},
          {"num_nextn_predict_layers", {0}},
          {"per_layer_config", {Json::object()}},
          {"position_embedding_type", {"rope", "rotary"}},
          {"q_lora_rank", {0}},
          {"residual_dropout", {0}},
          {"resid_pdrop", {0}},
          {"rope_interleave", {false}},
          {"rope_interleaved", {false}},
          {"rope_pct", {1}},
          {"rotary_dim", {computed.rotary_dim}},
          {"rotary_pct", {1}},
          {"sliding_window", {0}},
          {"use_alibi", {false}},
          {"use_bidirectional_attention", {false}},
          {"use_mrope", {false}},
          {"use_rope", {true}},
          {"use_sliding_window", {computed.has_window}},
          {"v_head_dim", {fields.head_dim}}};
}

// Routing and shared experts of other families, and experts where this family is dense.
std::vector<NeutralField> expert_fields(const Computed&) {
  return {{"decoder_sparse_step", {0}},
          {"first_k_dense_replace", {0}},
          {"mlp_only_layers", {Json::array()}},
          {"moe_intermediate_size", {0}},
          {"moe_layer_freq", {1}},
          {"moe_shared_expert_intermediate_size", {0}},
          {"n_group", {0, 1}},
          {"n_routed_experts", {0}},
          {"n_shared_experts", {0}},
          {"norm_topk_prob", {false}},
          {"num_experts", {0}},
          {"num_local_experts", {0}},
          {"num_shared_experts", {0}},
          {"output_router_logits", {false}},
          {"routed_scaling_factor", {1}},
          {"router_jitter_noise", {0}},
          {"scoring_func", {"softmax"}},
          {"shared_expert_intermediate_size", {0}},
          {"shared_intermediate_size", {0}},
          {"topk_group", {0, 1}},
          {"topk_method", {"greedy"}},
          {"use_router_bias", {false}}};
}

// Fields of transformers' base class, of generation and of tools that never touch the forward pass.
constexpr std::initializer_list<const char*> kHarmlessFields = {"model_type",
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
                                                                "chunk_size_feed_forward",
                                                                "classifier_dropout"};

// Empty where the table does not have the field.
std::vector<Json> neutral_values(const ConfigReader& reader, const std::vector<NeutralField>& table,
                                 const std::string& key) {
  if (const auto expected = reader.expected(key)) return {*expected};
  const auto row = std::find_if(table.begin(), table.end(),
                                [&](const NeutralField& field) { return field.key == key; });
  return row == table.end() ? std::vector<Json>{} : row->neutral;
}

// Numbers are compared by value, those with a fraction as f32: files round them.
bool is_neutral(const Json& value, const Json& neutral) {
  if (value.is_number() && neutral.is_number_float())
    return value.get<float>() == neutral.get<float>();
  return value == neutral;
}

// Whether the field describes a window that the model does not have.
bool is_without_window(const std::string& key, const Json& json, const Computed& computed) {
  if (computed.has_window) return false;
  if (key == "max_window_layers") return true;
  const auto uses_window = json.find("use_sliding_window");
  return key == "sliding_window" && uses_window != json.end() && *uses_window == false;
}

}  // namespace

std::vector<std::string> check_unread_fields(ConfigReader& reader, const Json& json,
                                             const CommonFields& fields,
                                             const ModelConfig& config) {
  reader.know(kHarmlessFields);
  const Computed computed = computed_by(fields, config.spec);
  std::vector<NeutralField> table = block_fields(computed);
  for (auto* more : {&model_fields, &expert_fields})
    for (NeutralField& row : more(computed)) table.push_back(std::move(row));
  std::vector<std::string> ignored;
  for (const std::string& key : reader.unknown_keys()) {
    const Json& value = json.at(key);
    if (value.is_null() || is_without_window(key, json, computed)) continue;
    const std::vector<Json> neutral = neutral_values(reader, table, key);
    if (neutral.empty()) {
      ignored.push_back(key);
    } else if (std::none_of(neutral.begin(), neutral.end(),
                            [&](const Json& known) { return is_neutral(value, known); })) {
      reader.unsupported(key, fmt::format("expected {}, the only value that {} is computed with, "
                                          "got {}",
                                          show_json_briefly(neutral[0]), config.model_type,
                                          show_json_briefly(value)));
    }
  }
  return ignored;
}

}  // namespace anabatic::model
