// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace anabatic::model {
namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama",
     .model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .has_pairs = true,
     .may_have_biases = true,
     .has_rope_factors = true},
    {.name = "llama",
     .model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .has_experts = true,
     .has_mlp_width = true,
     .has_pairs = true,
     .has_rope_factors = true,
     .normalizes = true},
    {.name = "qwen2",
     .model_type = "qwen2",
     .class_name = "Qwen2ForCausalLM",
     .has_qkv_bias = true,
     .has_square_queries = true},
    {.name = "qwen2moe",
     .model_type = "qwen2_moe",
     .class_name = "Qwen2MoeForCausalLM",
     .has_experts = true,
     .has_shared = true,
     .has_shared_gate = true,
     .has_qkv_bias = true,
     .has_square_queries = true,
     .has_own_head = true},
    {.name = "qwen3",
     .model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .qk_norm = QkNorm::kHead},
    {.name = "qwen3moe",
     .model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .has_experts = true,
     .qk_norm = QkNorm::kHead,
     .normalizes = true},
    {.name = "olmoe",
     .model_type = "olmoe",
     .class_name = "OlmoeForCausalLM",
     .has_experts = true,
     .has_mlp_width = true,
     .has_square_queries = true,
     .has_all_kv_heads = true,
     .has_own_head = true,
     .qk_norm = QkNorm::kAllHeads},
    {.name = "granitemoe",
     .model_type = "granitemoe",
     .class_name = "GraniteMoeForCausalLM",
     .has_experts = true,
     .has_mlp_width = true,
     .has_pairs = true,
     .may_have_biases = true,
     .has_scales = true,
     .has_rope_factors = true,
     .normalizes = true},
    {.name = "granitemoe",
     .model_type = "granitemoeshared",
     .class_name = "GraniteMoeSharedForCausalLM",
     .has_experts = true,
     .has_shared = true,
     .has_mlp_width = true,
     .has_pairs = true,
     .may_have_biases = true,
     .has_scales = true,
     .has_rope_factors = true,
     .normalizes = true},
    {.name = "gpt-oss",
     .model_type = "gpt_oss",
     .class_name = "GptOssForCausalLM",
     .has_experts = true,
     .has_mlp_width = true,
     .has_own_head = true,
     .has_all_biases = true,
     .has_sinks = true,
     .has_windows = true,
     .has_clamped_swiglu = true,
     .has_exact_yarn = true,
     .normalizes = true},
};

constexpr std::pair<std::string_view, std::string_view> kNames[] = {
    {"attention.k", "attn_k"},
    {"attention.k_norm", "attn_k_norm"},
    {"attention.o", "attn_output"},
    {"attention.q", "attn_q"},
    {"attention.q_norm", "attn_q_norm"},
    {"attention.sinks", "attn_sinks"},
    {"attention.v", "attn_v"},
    {"attention_norm", "attn_norm"},
    {"embedding", "token_embd"},
    {"experts.down", "ffn_down_exps"},
    {"experts.gate", "ffn_gate_exps"},
    {"experts.up", "ffn_up_exps"},
    {"head", "output"},
    {"mlp.down", "ffn_down"},
    {"mlp.gate", "ffn_gate"},
    {"mlp.up", "ffn_up"},
    {"mlp_norm", "ffn_norm"},
    {"norm", "output_norm"},
    {"router", "ffn_gate_inp"},
    {"shared_expert.down", "ffn_down_shexp"},
    {"shared_expert.gate", "ffn_gate_shexp"},
    {"shared_expert.row_gate", "ffn_gate_inp_shexp"},
    {"shared_expert.up", "ffn_up_shexp"},
};

// The sinks are the one parameter without an ending.
constexpr std::string_view kSinks = "attention.sinks";

// "blk.3.attn_q.bias" of layers.3.attention.q.bias; "" where the format has no such tensor.
std::string name_of(const Parameter& parameter, std::string_view model_type) {
  const std::string_view key = parameter.key;
  const std::size_t end = key == kSinks ? key.size() : key.rfind('.');
  const auto* name = std::ranges::find(kNames, key.substr(0, end),
                                       &std::pair<std::string_view, std::string_view>::first);
  if (name == std::end(kNames)) return "";
  const std::string_view rest = key == kSinks ? ".weight" : key.substr(end);
  const bool is_post_norm = key.starts_with("mlp_norm.") && model_type == "gpt_oss";
  const std::string_view own = is_post_norm ? "post_attention_norm" : name->second;
  return parameter.layer < 0 ? fmt::format("{}{}", own, rest)
                             : fmt::format("blk.{}.{}{}", parameter.layer, own, rest);
}

HeadRows rows_in_pairs(const ModelConfig& config, const Parameter& parameter) {
  const bool rotates =
      parameter.key.starts_with("attention.q.") || parameter.key.starts_with("attention.k.");
  if (parameter.layer < 0 || !rotates) return {};
  const LayerSpec& layer = config.spec.layers[static_cast<std::size_t>(parameter.layer)];
  const std::int64_t width = std::get<Gqa>(layer.attention).head_dim;
  return {.rows = width, .rotated = width, .in_pairs = true};
}

// The gate of a shared expert is a vector there.
std::vector<std::int64_t> shape_of(const Parameter& parameter) {
  if (parameter.key == "shared_expert.row_gate.weight") return {parameter.shape.back()};
  return parameter.shape;
}

}  // namespace

std::span<const GgufArchitecture> gguf_architectures() { return kArchitectures; }

const GgufArchitecture* find_gguf_architecture(std::string_view name, bool has_experts,
                                               bool has_shared) {
  const GgufArchitecture* found = nullptr;
  for (const GgufArchitecture& each : kArchitectures)
    if (each.name == name && each.has_experts == has_experts &&
        (found == nullptr || each.has_shared == has_shared))
      found = &each;
  return found;
}

const GgufArchitecture* gguf_architecture_of(const ModelConfig& config) {
  const Moe* moe = first_moe(config.spec);
  const bool has_shared = moe != nullptr && moe->shared;
  std::string_view type = config.model_type;
  if (type == "mistral") type = "llama";
  if (type == "granitemoeshared" && !has_shared) type = "granitemoe";
  const auto* found = std::ranges::find(kArchitectures, type, &GgufArchitecture::model_type);
  return found == std::end(kArchitectures) ? nullptr : found;
}

std::string gguf_architecture_names() {
  std::vector<std::string_view> names;
  for (const GgufArchitecture& each : kArchitectures)
    if (names.empty() || names.back() != each.name) names.push_back(each.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string gguf_model_types() {
  std::string types = "mistral";
  for (const GgufArchitecture& each : kArchitectures) types += fmt::format(", {}", each.model_type);
  return types;
}

WeightMap gguf_weight_map(const ModelConfig& config, bool has_pairs) {
  WeightMap map;
  for (const Parameter& parameter : declare(config.spec).parameters) {
    WeightPiece piece{.state = parameter.name(),
                      .count = parameter.num_elements(),
                      .row_elements = parameter.shape.size() > 1 ? parameter.shape.back() : 1};
    if (has_pairs) piece.heads = rows_in_pairs(config, parameter);
    map.tensors.push_back({.name = name_of(parameter, config.model_type),
                           .shape = shape_of(parameter),
                           .pieces = {std::move(piece)}});
  }
  return map;
}

bool is_gguf_matrix(const FileTensor& tensor) {
  const std::string_view state = tensor.pieces.front().state;
  return tensor.shape.size() > 1 && !state.ends_with("router.weight") && !state.ends_with(".bias");
}

bool is_gguf_expert(const FileTensor& tensor) {
  const bool is_of_experts = tensor.pieces.front().state.find(".experts.") != std::string::npos;
  return is_of_experts && is_gguf_matrix(tensor);
}

}  // namespace anabatic::model
