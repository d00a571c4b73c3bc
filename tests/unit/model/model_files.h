// SPDX-License-Identifier: Apache-2.0
// Configs and weight files for the tests of model.
#pragma once
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "anabatic/error.h"
#include "model/declarations.h"
#include "model/initialize.h"
#include "model/model.h"
#include "model/weights.h"
#include "unit/io/test_files.h"

namespace anabatic::model {

// What `action` throws as E; "" when nothing. Another kind of error ends the test.
template <class E, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

// The config of `json`, read from a file.
inline ModelConfig config_from(const std::string& json) {
  const io::TempDirectory folder;
  io::write_text(folder / "config.json", json);
  return load_config(folder.path());
}

// "{"model_type": TYPE, small sizes, MEMBERS}"; a member replaces a size of the same name (JSON
// keeps the last).
inline std::string small_json(const std::string& model_type, const std::string& members = "") {
  static const std::map<std::string, std::string> more{
      {"deepseek_v2", R"(, "num_key_value_heads": 6, "q_lora_rank": 5, "kv_lora_rank": 7,
                           "qk_rope_head_dim": 4, "qk_nope_head_dim": 3, "v_head_dim": 6,
                           "n_routed_experts": 6, "num_experts_per_tok": 3,
                           "moe_intermediate_size": 5)"},
      {"deepseek_v3", R"(, "num_key_value_heads": 6, "q_lora_rank": 5, "kv_lora_rank": 7,
                           "qk_rope_head_dim": 4, "qk_nope_head_dim": 3, "v_head_dim": 6,
                           "n_routed_experts": 6, "num_experts_per_tok": 3,
                           "moe_intermediate_size": 5, "n_group": 3, "topk_group": 2,
                           "first_k_dense_replace": 1)"},
      {"dots1", R"(, "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 5,
                     "n_shared_experts": 2, "first_k_dense_replace": 1, "sliding_window": null)"},
      {"glm4_moe",
       R"(, "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 5)"},
      {"gpt2", R"(, "num_key_value_heads": 6, "head_dim": 2, "n_inner": 10, "resid_pdrop": 0,
                     "embd_pdrop": 0, "attn_pdrop": 0)"},
      {"glm4_moe_lite", R"(, "num_key_value_heads": 6, "q_lora_rank": 5, "kv_lora_rank": 7,
                             "qk_rope_head_dim": 4, "qk_nope_head_dim": 3, "v_head_dim": 6,
                             "n_routed_experts": 6, "num_experts_per_tok": 3,
                             "moe_intermediate_size": 5)"},
      {"pangu_ultra_moe", R"(, "num_key_value_heads": 6, "attention_q_lora_dim": 5,
                               "attention_kv_lora_dim": 7, "attention_qk_rope_dim": 4,
                               "attention_qk_dim": 3, "attention_v_dim": 6,
                               "num_routed_experts": 6, "num_experts_per_tok": 3,
                               "moe_intermediate_size": 5, "num_dense_layers": 1,
                               "sandwich_norm": true)"},
      {"ernie4_5_moe", R"(, "moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 5)"},
      {"hunyuan_v1_moe", R"(, "num_experts": 5, "moe_topk": [2, 2, 2])"},
      {"minimax_m2", R"(, "num_local_experts": 4, "num_experts_per_tok": 2)"},
      {"flex_olmo", R"(, "num_experts": 5, "num_experts_per_tok": 2, "pad_token_id": null)"},
      {"gpt_oss", R"(, "num_local_experts": 4, "num_experts_per_tok": 2)"},
      {"granitemoe", R"(, "num_local_experts": 4, "num_experts_per_tok": 2)"},
      {"granitemoeshared", R"(, "num_local_experts": 4, "num_experts_per_tok": 2,
                               "shared_intermediate_size": 7)"},
      {"mixtral", R"(, "num_local_experts": 4, "num_experts_per_tok": 2)"},
      {"olmoe", R"(, "num_experts": 5, "num_experts_per_tok": 2, "head_dim": 2)"},
      {"qwen2_moe", R"(, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 5,
                          "shared_expert_intermediate_size": 7)"},
      {"qwen3_moe", R"(, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 5)"},
      {"solar_open", R"(, "n_routed_experts": 6, "num_experts_per_tok": 3,
                          "moe_intermediate_size": 5)"}};
  const auto found = more.find(model_type);
  const std::string experts = found == more.end() ? "" : found->second;
  return R"({"vocab_size": 11, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 3,
             "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4,
             "max_position_embeddings": 32, "model_type": ")" +
         model_type + "\"" + experts + (members.empty() ? "" : ", " + members) + "}";
}

// Attention of a layer that has the plain kind.
inline const Gqa& gqa_of(const ModelConfig& config, std::size_t layer = 0) {
  return std::get<Gqa>(config.spec.layers.at(layer).attention);
}

inline std::vector<std::int64_t> windows_of(const ModelConfig& config) {
  std::vector<std::int64_t> windows;
  for (std::size_t i = 0; i < config.spec.layers.size(); ++i)
    windows.push_back(gqa_of(config, i).window);
  return windows;
}

// Which layers have experts.
inline std::vector<bool> sparse_layers(const ModelConfig& config) {
  std::vector<bool> are_sparse;
  for (const LayerSpec& layer : config.spec.layers)
    are_sparse.push_back(std::holds_alternative<Moe>(layer.feed_forward));
  return are_sparse;
}

using States = std::map<std::string, std::vector<float>, std::less<>>;

// All parameters, drawn with this seed.
inline States random_states(const ModelConfig& config, std::uint64_t seed) {
  States states;
  for (const Parameter& parameter : declare(config.spec).parameters) {
    std::vector<float>& values = states[parameter.name()];
    values.resize(static_cast<std::size_t>(parameter.num_elements()));
    ir::State state;
    state.name = intern(parameter.name());
    state.init = parameter.init;
    initialize(state, tensor_type(DType::kFloat32, parameter.shape), 0, values, seed);
  }
  return states;
}

inline StateReader values_of(const States& states) {
  return [&](std::string_view name, std::int64_t first, std::span<float> values) {
    const std::vector<float>& all = states.find(name)->second;
    std::copy_n(all.begin() + first, values.size(), values.begin());
  };
}

inline StateWriter buffers_of(States& states) {
  return [&](std::string_view name, std::int64_t first, std::span<const float> values) {
    std::vector<float>& all = states.find(name)->second;
    if (static_cast<std::size_t>(first) + values.size() <= all.size())
      std::copy(values.begin(), values.end(), all.begin() + first);
  };
}

}  // namespace anabatic::model
