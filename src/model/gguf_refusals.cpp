// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <variant>

#include "base/error.h"
#include "io/problems.h"
#include "model/gguf_export.h"

namespace anabatic::model {
namespace {

// Collects what an architecture cannot say of a config, by the names of config.json.
class Refusals {
 public:
  Refusals(const ModelConfig& config, const GgufArchitecture& architecture)
      : spec_(config.spec), architecture_(architecture) {}

  std::vector<std::string> find() {
    if (!architecture_.has_scales) refuse_scales();
    expect_if(architecture_.has_own_head && spec_.head.is_tied, "tie_word_embeddings", "false");
    refuse_rope();
    refuse_windows();
    for (const LayerSpec& layer : spec_.layers) {
      if (layer.norms != NormPlacement::kBefore) expect("norms", "before each block");
      if (const auto* attention = std::get_if<Gqa>(&layer.attention))
        refuse_attention(*attention);
      else
        expect("attention", "grouped queries");
      if (const auto* moe = std::get_if<Moe>(&layer.feed_forward))
        refuse_experts(*moe);
      else
        refuse_mlp(std::get<Mlp>(layer.feed_forward));
    }
    return std::move(problems_);
  }

 private:
  // Says so once, whatever the number of layers.
  void expect(std::string_view field, std::string_view what) {
    std::string problem =
        fmt::format("{}: a GGUF file of {} can only have {}", field, architecture_.name, what);
    if (std::ranges::find(problems_, problem) == problems_.end())
      problems_.push_back(std::move(problem));
  }
  void expect_if(bool differs, std::string_view field, std::string_view what) {
    if (differs) expect(field, what);
  }

  void refuse_scales() {
    expect_if(spec_.embedding_multiplier != 1, "embedding_multiplier", "1");
    expect_if(spec_.residual_multiplier != 1, "residual_multiplier", "1");
    expect_if(spec_.logits_divisor != 1, "logits_scaling", "1");
  }

  void refuse_rope() {
    const spec::Rope& rope = spec_.rope;
    const bool is_known = rope.variant == "default" || rope.variant == "linear" ||
                          rope.variant == "yarn" || rope.variant == "llama3";
    expect_if(!is_known, "rope_type", "default, linear, yarn or llama3");
    expect_if(rope.variant == "llama3" && !architecture_.has_rope_factors, "rope_type",
              "default, linear or yarn");
    if (rope.variant != "yarn") return;
    expect_if(rope.attention_factor >= 0, "attention_factor", "the default of yarn");
    expect_if(rope.beta_fast != 32 || rope.beta_slow != 1, "beta_fast, beta_slow", "32 and 1");
    expect_if(rope.mscale != 0 || rope.mscale_all_dim != 0, "mscale", "the default of yarn");
    expect_if(!rope.truncate && !architecture_.has_exact_yarn, "truncate", "true");
  }

  // An architecture with windows has one size of them, in the layers of even number.
  void refuse_windows() {
    std::int64_t window = 0;
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
      const auto* attention = std::get_if<Gqa>(&spec_.layers[i].attention);
      if (attention == nullptr) continue;
      if (i == 0) window = attention->window;
      if (!architecture_.has_windows)
        expect_if(attention->window > 0, "sliding_window", "attention to all tokens before");
      else
        expect_if(window == 0 || attention->window != (i % 2 == 0 ? window : 0), "layer_types",
                  "a window in every other layer, the first among them");
    }
  }

  void refuse_attention(const Gqa& attention) {
    const bool biases = architecture_.may_have_biases;
    expect_if(attention.has_sinks != architecture_.has_sinks, "sinks",
              architecture_.has_sinks ? "one a head" : "none");
    expect_if(attention.clip_qkv != 0, "clip_qkv", "no limit");
    expect_if(!architecture_.has_scales && attention.softmax_scale.has_value(),
              "attention_multiplier", "head_dim^-1/2");
    expect_if(architecture_.has_square_queries &&
                  attention.num_heads * attention.head_dim != spec_.hidden_size,
              "head_dim", "hidden_size / num_attention_heads");
    expect_if(architecture_.has_all_kv_heads && attention.num_kv_heads != attention.num_heads,
              "num_key_value_heads", "as many as attention heads");
    expect_if(attention.qk_norm != architecture_.qk_norm || attention.norms_after_rope,
              "norms of queries and keys", "those of its architecture");
    expect_if(spec_.rope.rotary_dim != attention.head_dim, "partial_rotary_factor", "1");
    if (architecture_.has_all_biases)
      expect_if(!attention.qkv_bias || !attention.output_bias, "attention_bias", "true");
    else if (architecture_.has_qkv_bias)
      expect_if(!attention.qkv_bias || attention.output_bias, "qkv_bias",
                "biases of queries, keys and values");
    else
      expect_if(!biases && (attention.qkv_bias || attention.output_bias), "attention_bias",
                "no biases");
  }

  void refuse_activation(const spec::Activation& activation) {
    if (architecture_.has_clamped_swiglu) {
      expect_if(activation != spec::Activation{.kind = spec::ActivationKind::kSwigluClamped,
                                               .alpha = 1.702,
                                               .limit = 7.0},
                "swiglu_alpha, swiglu_limit", "1.702 and 7");
      return;
    }
    expect_if(activation.kind != spec::ActivationKind::kSwiglu, "hidden_act", "silu");
  }

  void refuse_mlp(const Mlp& mlp) {
    refuse_activation(mlp.activation);
    expect_if(architecture_.has_experts, "mlp_only_layers, decoder_sparse_step",
              "experts in every layer");
    expect_if(mlp.bias && !architecture_.may_have_biases, "mlp_bias", "no biases");
  }

  void refuse_experts(const Moe& moe) {
    refuse_activation(moe.activation);
    const spec::RouterForm& form = moe.router.form;
    expect_if(!architecture_.has_experts, "num_experts", "no experts");
    expect_if(form.normalizes != architecture_.normalizes, "norm_topk_prob",
              architecture_.normalizes ? "true" : "false");
    const bool is_plain = form.score == spec::RouterScore::kSoftmax && !form.has_bias &&
                          !form.bars_groups() && form.scale == 1 && form.epsilon == 0 &&
                          form.floor == 0 && moe.router.bias == architecture_.has_all_biases;
    expect_if(!is_plain, "the router", "the softmax of its logits");
    expect_if(moe.expert_bias != architecture_.has_all_biases, "biases of experts",
              architecture_.has_all_biases ? "one of each projection" : "none");
    const bool is_gated = moe.shared && moe.shared->is_gated;
    expect_if(moe.shared.has_value() != architecture_.has_shared ||
                  is_gated != architecture_.has_shared_gate,
              "shared experts", architecture_.has_shared ? "one" : "none");
  }

  const ModelSpec& spec_;
  const GgufArchitecture& architecture_;
  std::vector<std::string> problems_;
};

}  // namespace

const GgufArchitecture& require_gguf_architecture(const ModelConfig& config) {
  const GgufArchitecture* architecture = gguf_architecture_of(config);
  if (architecture == nullptr)
    throw Unsupported(fmt::format("[gguf] model_type: expected one of {}, got {}",
                                  gguf_model_types(), config.model_type));
  const std::vector<std::string> problems = Refusals(config, *architecture).find();
  if (!problems.empty()) throw Unsupported(io::problem_text("gguf", config.model_type, problems));
  return *architecture;
}

}  // namespace anabatic::model
