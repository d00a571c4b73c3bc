// SPDX-License-Identifier: Apache-2.0
// dots.llm1: qwen3 attention with a bias of every projection, and the experts of deepseek_v3.
#include "model/family.h"

namespace anabatic::model {
namespace {

void read_dots1(ConfigReader& reader, const CommonFields& fields, ModelConfig& config) {
  Gqa attention = fields.attention();
  read_attention_bias(reader, attention);
  attention.qk_norm = QkNorm::kHead;
  const Router router{.form = {.normalizes = false}};
  const Moe moe = read_biased_experts(reader, fields, {.width = 1408, .router = router});
  const std::int64_t num_dense =
      reader.integer("first_k_dense_replace", 0, {0, Limits::kPositions});
  // The config class has the field, and the model no auxiliary loss.
  reader.know({"output_router_logits"});
  const std::int64_t window = read_sliding_window(reader, 4096);
  for (const std::int64_t its_window : layer_windows(reader, fields, window, 62, slides_from)) {
    attention.window = its_window;
    const bool is_dense = std::ssize(config.spec.layers) < num_dense;
    config.spec.layers.push_back(
        {.attention = attention,
         .feed_forward = is_dense ? FeedForward(fields.mlp()) : FeedForward(moe)});
  }
  config.spec.spellings = with_shared_experts({Spelling{}, fused_experts("mlp")});
}

}  // namespace

const Family kDots1{.model_type = "dots1",
                    .defaults = {.vocab_size = 152064,
                                 .hidden_size = 4608,
                                 .intermediate_size = 10944,
                                 .num_hidden_layers = 62,
                                 .num_attention_heads = 32,
                                 .num_key_value_heads = 32,
                                 .head_dim = 0,
                                 .max_position_embeddings = 2048,
                                 .rms_norm_eps = 1e-6,
                                 .rope_theta = 10000.0,
                                 .bos_token_id = -1,
                                 .eos_token_id = -1},
                    .read = read_dots1};

}  // namespace anabatic::model
