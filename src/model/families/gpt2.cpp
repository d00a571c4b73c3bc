// SPDX-License-Identifier: Apache-2.0
// GPT-2: layer norms, a table of positions, biases everywhere, and matrices that files transpose.
#include <fmt/core.h>

#include <cmath>

#include "model/family.h"

namespace anabatic::model {
namespace {

constexpr FieldName kFieldNames[] = {
    {"hidden_size", "n_embd", true},         {"max_position_embeddings", "n_positions", true},
    {"num_attention_heads", "n_head", true}, {"num_hidden_layers", "n_layer", true},
    {"intermediate_size", "n_inner"},        {"hidden_act", "activation_function"},
    {"rms_norm_eps", "layer_norm_epsilon"}};

// Queries, keys and values are columns of one matrix.
Spelling names_after(const std::string& prefix) {
  Spelling names{{kLayers, {prefix + "h"}},
                 {"embedding.weight", {prefix + "wte.weight"}},
                 {"position_embedding.weight", {prefix + "wpe.weight"}},
                 {"norm.weight", {prefix + "ln_f.weight"}},
                 {"norm.bias", {prefix + "ln_f.bias"}}};
  const auto rename = [&](const std::string& parameter, const std::string& file, bool is_matrix) {
    names.push_back(
        {parameter + ".weight", {.tensor = file + ".weight", .is_transposed = is_matrix}});
    names.push_back({parameter + ".bias", {file + ".bias"}});
  };
  rename("attention_norm", "ln_1", false);
  for (const char* part : {"attention.q", "attention.k", "attention.v"})
    rename(part, "attn.c_attn", true);
  rename("attention.o", "attn.c_proj", true);
  rename("mlp_norm", "ln_2", false);
  rename("mlp.up", "mlp.c_fc", true);
  rename("mlp.down", "mlp.c_proj", true);
  return names;
}

void read_dropout(ConfigReader& reader, ModelConfig& config) {
  const auto rate = [&](const char* key) { return reader.number(key, 0.1, 0.0, 1.0); };
  config.dropout.residual = rate("resid_pdrop");
  config.dropout.embedding = rate("embd_pdrop");
  config.dropout.attention = rate("attn_pdrop");
}

void refuse_other_heads(ConfigReader& reader, const CommonFields& fields) {
  if (fields.num_key_value_heads != fields.num_attention_heads)
    reader.unsupported("num_key_value_heads",
                       fmt::format("expected as many as n_head, {}, got {}",
                                   fields.num_attention_heads, fields.num_key_value_heads));
  if (fields.head_dim * fields.num_attention_heads != fields.hidden_size)
    reader.unsupported("head_dim",
                       fmt::format("expected n_embd / n_head, {} / {}, got {}", fields.hidden_size,
                                   fields.num_attention_heads, fields.head_dim));
}

void read_gpt2(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  attention.qkv_bias = attention.output_bias = true;
  Mlp mlp = fields.mlp();
  mlp.bias = true;
  refuse_other_heads(reader, fields);
  read_dropout(reader, config);
  // Softmax is f32 here whatever reorder_and_upcast_attn says. The others are of older versions, or
  // of heads for other tasks.
  reader.know({"n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj",
               "summary_activation", "summary_proj_to_labels", "summary_first_dropout"});
  const bool by_width = reader.boolean("scale_attn_weights", true),
             by_layer = reader.boolean("scale_attn_by_inverse_layer_idx", false);
  const double scale = by_width ? 1 / std::sqrt(static_cast<double>(fields.head_dim)) : 1;
  ModelSpec& spec = config.spec;
  spec.padding_token = -1;  // transformers trains its row
  spec.norm = NormKind::kLayer;
  spec.learned_positions = fields.max_position_embeddings;
  spec.residual_deviation =
      spec.initializer_range / std::sqrt(2 * static_cast<double>(fields.num_hidden_layers));
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i) {
    attention.softmax_scale = by_layer ? scale / static_cast<double>(i + 1) : scale;
    spec.layers.push_back({.attention = attention, .feed_forward = mlp});
  }
  spec.spellings = {names_after("transformer."), names_after("")};
  // The causal mask, and what it puts in place of a score.
  spec.unused_tensors = {".attn.bias", ".attn.masked_bias"};
}

}  // namespace

const Family kGpt2{.model_type = "gpt2",
                   .defaults = {.vocab_size = 50257,
                                .hidden_size = 768,
                                .intermediate_size = 0,
                                .num_hidden_layers = 12,
                                .num_attention_heads = 12,
                                .num_key_value_heads = 0,
                                .head_dim = 0,
                                .max_position_embeddings = 1024,
                                .rms_norm_eps = 1e-5,
                                .rope_theta = 0,
                                .bos_token_id = 50256,
                                .eos_token_id = 50256,
                                .is_tied = true,
                                .hidden_act = "gelu_new",
                                .is_gated = false},
                   .read = read_gpt2,
                   .field_names = kFieldNames};

}  // namespace anabatic::model
