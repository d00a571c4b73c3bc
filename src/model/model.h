// SPDX-License-Identifier: Apache-2.0
// A model read from a Hugging Face config.json, its graph, and its counts of parameters and FLOPs.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "model/model_spec.h"
#include "spec/key_blocks.h"

namespace anabatic::model {

struct ModelCounts {
  std::int64_t total = 0, active = 0;  // active: experts counted top_k / num_experts
  std::int64_t active_without_embedding_and_routers = 0;  // in model FLOPs; always with the head
  // heads · (d_qk + d_v), summed over the layers of each window; 0: no window.
  std::map<std::int64_t, std::int64_t> attention_widths{};

  bool has_window() const {
    return !attention_widths.empty() && attention_widths.rbegin()->first > 0;
  }
};

struct Adapter;

// The contents of a config.json.
struct ModelConfig {
  std::string model_type;  // "llama", "qwen3_moe", ...: of a family
  ModelSpec spec{};
  ModelCounts counts{};  // of `spec`
  // The sizes by their names in config.json, 0 where the model has no such part.
  std::vector<std::pair<std::string, std::int64_t>> sizes{};
  std::int64_t max_position_embeddings = 0;
  bool output_router_logits = false;
  double router_aux_loss_coef = 0.0;
  bool has_balance_loss = false;  // whether the family's config class has router_aux_loss_coef
  // Layers of multi-token prediction that files may hold. model/mtp.h makes them part of `spec`.
  std::vector<LayerSpec> mtp_layers{};
  std::int64_t bos_token_id = -1;
  std::vector<std::int64_t> eos_token_ids{};
  Dropout dropout{};    // the rates that transformers trains with
  std::string dtype{};  // torch_dtype / dtype of the source, "" when absent
  // What a run adds to the model (model/lora); null: nothing. The rest says nothing of it.
  std::shared_ptr<const Adapter> adapter{};
  // Which blocks of keys every attention layer reads, within its window; null: all.
  std::shared_ptr<const spec::BlockPattern> key_blocks{};
};

// The text of DIR/config.json or of a config.json itself, or what the metadata of a GGUF file stand
// for.
std::string config_text(const std::filesystem::path& directory_or_file);

// Reads that text. InvalidArgument / Unsupported list every offending
// field at once: missing, mistyped, inconsistent, and any that changes the maths and is not
// supported.
ModelConfig load_config(const std::filesystem::path& directory_or_file);

// The auxiliary loss that balances experts. Padding does not count.
enum class BalanceLoss {
  kLayer,  // E / (k·T) · Σₑ countsₑ · mean probabilityₑ (minimum 1), mean over MoE layers
  kSequence,  // the same for the tokens of a document in a sample, mean over documents and layers
  kAllLayers,  // as transformers: E · Σₑ (countsₑ / T) · mean probabilityₑ over the tokens of all
               // layers together (minimum k)
  kNone  // kLayer's value as an output, but not in the objective
};

// A loss of pairs of completions (spec/preference.h).
struct Preference {
  std::string loss = "sigmoid";
  double beta = 0.1, label_smoothing = 0;
  bool length_normalized = false;
};

struct BuildOptions {
  std::int64_t num_tokens = 0;  // T of one micro-batch
  // Tokens that a document has in a sample or a cache; 0: as many as that.
  std::int64_t longest_document = 0;
  bool with_loss = true;                           // false: logits only
  bool with_logits = false;                        // list `logits` among the outputs
  bool with_log_probabilities = false;             // of `labels`, row by row, with `margins`
  BalanceLoss balance_loss = BalanceLoss::kLayer;  // `aux_loss`, an output of MoE models
  double balance_coef = 0.0;                       // of aux_loss in the objective
  double z_loss_coef = 0.0;
  bool keeps_mtp = false;                  // parameters of spec.mtp are states
  double mtp_coef = 0.0;                   // of mtp_loss in the objective; 0: it is not computed
  bool with_weights = false;               // each label has a weight: one more input
  std::optional<Preference> preference{};  // the loss is that of pairs
  Dropout dropout{};                       // of a graph with loss; `adapter` is forward_graph's
  std::int64_t cache_capacity = 0;  // > 0: decoding graph with KV caches of that many rows, states
                                    // `layers.N.attention.{k,v}_cache`
};

// The forward graph of one micro-batch in fp32. Its outputs are `loss` (language model, scaled by
// inverse_tokens), `aux_loss`, `z_loss`, `mtp_loss`, `expert_load.N` (counts of layer N), `logits`,
// `log_probabilities` and `margins`. Losses of the micro-batches of a step add up to the step's.
// With loss and experts the batch has one more input, `documents`, and with weights `weights
// f32[T]`. With preferences it has `completions i32[T]` and `reference f32[T]`; `loss` is the mean
// over the pairs of a step by `inverse_pairs`, and `preference_sums` an output. With a cache it has
// `cache_places`, the row of the cache that each token goes to (negative: none), and attention
// reads the caches. With dropout it has `dropout_draws` (spec/dropout.h). With blocks of keys it
// has their lists, `block_offsets` and `block_ids`, which set_key_blocks fills. model/mtp.h has the
// inputs of mtp_loss.
ir::Graph build_graph(const ModelConfig& config, const BuildOptions& options);

// The lists of a pattern for documents of at most so many tokens: no more than a mask has blocks
// for.
spec::BlockLists key_block_lists(const spec::BlockPattern& pattern, std::int64_t longest_document);

// FLOPs of a weight that a token meets: 2 in the forward, as many for each gradient.
double training_flops_a_weight(const ModelConfig& config);

// Model FLOPs of a training step: 6 · tokens · active, and in each layer 7 · (d_qk + d_v) · heads ·
// pairs. The pairs are those of queries and keys that a layer with this window (0: none) computes.
// With an adapter weights have no gradient: 4 · tokens · active, and 6 for its own.
double training_flops(const ModelConfig& config, std::int64_t tokens,
                      const std::function<double(std::int64_t window)>& unmasked_pairs);

}  // namespace anabatic::model
