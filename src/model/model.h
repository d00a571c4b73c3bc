// SPDX-License-Identifier: Apache-2.0
// A model family read from a Hugging Face config.json: its graph, its states and where in the files
// each state comes from.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "spec/activation.h"
#include "spec/rope.h"

namespace anabatic::model {

// The union of what the families (model/family.h) need. Field names
// follow config.json.
struct ModelConfig {
  std::string model_type;  // "llama", "qwen3_moe", ...: of a family
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  std::int64_t max_position_embeddings = 0;
  std::int64_t sliding_window = 0;       // 0: none
  std::vector<bool> layer_has_window{};  // a layer; qwen3's layer_types / max_window_layers
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  spec::Rope rope{};
  spec::Activation activation{};  // of gate and up, by hidden_act
  bool tie_word_embeddings = false, attention_bias = false, attention_output_bias = false,
       mlp_bias = false, qk_norm = false;
  // Experts; num_experts 0: dense.
  std::int64_t num_experts = 0, num_experts_per_tok = 0, moe_intermediate_size = 0;
  std::vector<bool> layer_is_moe{};  // a layer
  bool norm_topk_prob = true;
  bool output_router_logits = false;
  double router_aux_loss_coef = 0.0;
  std::int64_t bos_token_id = -1;
  std::int64_t pad_token_id = -1;  // its row of the embedding is not trained
  std::vector<std::int64_t> eos_token_ids{};
  std::string dtype{};  // torch_dtype / dtype of the source, "" when absent
};

// Reads DIR/config.json or a config.json itself. InvalidArgument / Unsupported list every offending
// field at once: missing, mistyped, inconsistent, and any that changes the maths and is not
// supported.
ModelConfig load_config(const std::filesystem::path& directory_or_file);

// What keeps experts equally busy. Only tokens count, not padding.
enum class BalanceLoss {
  kLayer,  // E / (k·T) · Σₑ countsₑ · mean probabilityₑ (least: 1), mean over MoE layers
  kSequence,  // the same of each document's tokens in its row, mean over documents and layers
  kAllLayers,  // as transformers: E · Σₑ (countsₑ / T) · mean probabilityₑ over all layers' tokens
               // together (least: k)
  kNone  // kLayer's value, in no objective
};

struct BuildOptions {
  std::int64_t num_tokens = 0;                     // T of one micro-batch
  bool with_loss = true;                           // false: logits only
  bool with_logits = false;                        // list `logits` among the outputs
  BalanceLoss balance_loss = BalanceLoss::kLayer;  // `aux_loss`, an output of MoE models
  double balance_coef = 0.0;                       // of aux_loss in the objective; 0: no part of it
  double z_loss_coef = 0.0;
  std::int64_t cache_capacity = 0;  // > 0: decoding graph with KV caches of that many rows, states
                                    // `layers.N.attention.{k,v}_cache`
};

// The forward graph of one micro-batch in fp32, outputs `loss` (language model, scaled by
// inverse_tokens), `aux_loss`, `z_loss`, `expert_load.N` (counts of layer N), `logits`. Losses of
// the micro-batches of a step add up to the step's. With loss and experts the batch has one more
// input, `documents`; with a cache it has `cache_first i32[1]`, the row where this call's tokens
// go, and attention reads the caches.
ir::Graph build_graph(const ModelConfig& config, const BuildOptions& options);

struct ParameterCounts {
  std::int64_t total = 0, active = 0;  // active: experts counted top_k / num_experts
  std::int64_t active_without_embedding_and_routers =
      0;  // what model FLOPs count; the head always counted
};
ParameterCounts count_parameters(const ModelConfig& config);

// Model FLOPs of a training step by conventions: 6 · tokens · active + 7 · (d_qk + d_v) · heads ·
// pairs a layer.
double training_flops(const ModelConfig& config, std::int64_t tokens,
                      double unmasked_pairs_per_layer);

}  // namespace anabatic::model
