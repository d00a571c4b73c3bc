// SPDX-License-Identifier: Apache-2.0
#include "model/family.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

namespace anabatic::model {

std::span<const Family* const> families() {
  static constexpr std::array kFamilies{
      &kDeepseekV2,       &kDeepseekV3,   &kDots1,    &kErnie45Moe,    &kFlexOlmo,
      &kGlm4Moe,          &kGlm4MoeLite,  &kGpt2,     &kGptOss,        &kGraniteMoe,
      &kGraniteMoeShared, &kHunyuanV1Moe, &kLlama,    &kMinimaxM2,     &kMistral,
      &kMixtral,          &kOlmo2,        &kOlmoe,    &kPanguUltraMoe, &kQwen2,
      &kQwen2Moe,         &kQwen3,        &kQwen3Moe, &kSolarOpen};
  return kFamilies;
}

const Family* find_family(std::string_view model_type) {
  for (const Family* family : families())
    if (family->model_type == model_type) return family;
  return nullptr;
}

const Family* find_family_of_class(std::string_view architecture) {
  for (const Family* family : families())
    if (!family->architecture.empty() && family->architecture == architecture) return family;
  return nullptr;
}

Gqa CommonFields::attention() const {
  return {
      .num_heads = num_attention_heads, .num_kv_heads = num_key_value_heads, .head_dim = head_dim};
}

Mlp CommonFields::mlp() const { return {.width = intermediate_size, .activation = activation}; }

void read_attention_bias(ConfigReader& reader, Gqa& attention) {
  attention.qkv_bias = attention.output_bias = reader.boolean("attention_bias", false);
}

std::int64_t read_either(ConfigReader& reader, const char* key, const char* other_key,
                         std::int64_t fallback, Range range) {
  const auto other = reader.optional_integer(other_key, std::nullopt, range);
  const bool both = reader.has(key) && other;
  const std::int64_t value = reader.integer(key, other.value_or(fallback), range);
  if (both && *other != value)
    reader.invalid(key, fmt::format("expected what {} says, {}, got {}", other_key, *other, value));
  return value;
}

std::int64_t read_sliding_window(ConfigReader& reader, std::int64_t fallback) {
  return reader
      .optional_integer("sliding_window", fallback > 0 ? std::optional(fallback) : std::nullopt,
                        {1, Limits::kPositions})
      .value_or(0);
}

void read_groups(ConfigReader& reader, Moe& moe) {
  spec::RouterForm& form = moe.router.form;
  form.groups = reader.integer("n_group", form.groups, {1, Limits::kExperts});
  form.group_top_k = reader.integer("topk_group", form.group_top_k, {1, Limits::kExperts});
  const std::int64_t in_group = moe.num_experts / form.groups;
  // A group's value may be the sum of its two best experts.
  const std::int64_t least = form.group_score == spec::GroupScore::kTop2 ? 2 : 1;
  if (moe.num_experts % form.groups != 0 || in_group < least)
    return reader.invalid("n_group",
                          fmt::format("expected groups of {} experts with at least {} each, got {}",
                                      moe.num_experts, least, form.groups));
  if (form.group_top_k > form.groups)
    return reader.invalid("topk_group", fmt::format("expected at most n_group, {}, got {}",
                                                    form.groups, form.group_top_k));
  if (moe.top_k > in_group * form.group_top_k)
    reader.invalid("num_experts_per_tok",
                   fmt::format("expected at most {} experts in {} groups, got {}",
                               in_group * form.group_top_k, form.group_top_k, moe.top_k));
}

double read_routed_scale(ConfigReader& reader, double fallback) {
  const char* key = "routed_scaling_factor";
  const double scale = reader.number(key, fallback, 0.0, 1e6);
  if (scale == 0) reader.invalid(key, "expected more than 0, got 0");
  return scale;
}

Moe read_experts(ConfigReader& reader, const CommonFields& fields, ModelConfig& config,
                 const char* key, const char* other_key, const Moe& defaults,
                 double aux_loss_coef) {
  const Range range{0, Limits::kExperts};
  Moe moe{.width = defaults.width, .activation = fields.activation};
  moe.num_experts = other_key != nullptr
                        ? read_either(reader, key, other_key, defaults.num_experts, range)
                        : reader.integer(key, defaults.num_experts, range);
  moe.top_k = reader.integer("num_experts_per_tok", defaults.top_k, {1, Limits::kExperts});
  if (moe.num_experts > 0) require_enough_experts(reader, "num_experts_per_tok", moe);
  config.has_balance_loss = true;
  config.output_router_logits = reader.boolean("output_router_logits", false);
  config.router_aux_loss_coef = reader.number("router_aux_loss_coef", aux_loss_coef, 0.0, 1e6);
  return moe;
}

void require_enough_experts(ConfigReader& reader, const char* key, const Moe& moe) {
  if (moe.top_k > moe.num_experts)
    reader.invalid(key,
                   fmt::format("expected at most {} experts, got {}", moe.num_experts, moe.top_k));
}

void read_mtp_layers(ConfigReader& reader, ModelConfig& config, const LayerSpec& layer,
                     std::int64_t fallback) {
  const std::int64_t depths = read_either(reader, "num_nextn_predict_layers", "num_mtp_layers",
                                          fallback, {0, Limits::kLayers});
  config.mtp_layers.assign(static_cast<std::size_t>(depths), layer);
}

void require_experts(ConfigReader& reader, const char* key, const Moe& moe) {
  if (moe.num_experts == 0) reader.invalid(key, "expected at least one expert, got 0");
}

std::vector<std::int64_t> read_layer_windows(ConfigReader& reader, const CommonFields& fields,
                                             SlidesByDefault slides) {
  const bool uses_window = reader.boolean("use_sliding_window", false);
  reader.know({"sliding_window"});
  const std::int64_t window = uses_window ? read_sliding_window(reader, 4096) : 0;
  return layer_windows(reader, fields, window, 28, slides);
}

std::vector<std::int64_t> layer_windows(ConfigReader& reader, const CommonFields& fields,
                                        std::int64_t window, std::int64_t max_window_layers,
                                        SlidesByDefault slides) {
  max_window_layers =
      reader.integer("max_window_layers", max_window_layers, {0, Limits::kPositions});
  const std::vector<std::string> types = reader.strings("layer_types");
  const auto num_layers = static_cast<std::size_t>(fields.num_hidden_layers);
  std::vector<std::int64_t> windows(num_layers, 0);
  for (std::size_t i = 0; i < num_layers; ++i)
    if (slides(static_cast<std::int64_t>(i), max_window_layers)) windows[i] = window;
  if (types.empty()) return windows;
  if (types.size() != num_layers) {
    reader.invalid("layer_types", fmt::format("expected {} entries (num_hidden_layers), got {}",
                                              num_layers, types.size()));
    return windows;
  }
  for (std::size_t i = 0; i < num_layers; ++i) {
    const bool is_sliding = types[i] == "sliding_attention";
    if (!is_sliding && types[i] != "full_attention") {
      reader.unsupported(
          "layer_types",
          fmt::format("expected full_attention or sliding_attention, got {}", types[i]));
      return windows;
    }
    if (is_sliding && window == 0) {
      reader.invalid("layer_types",
                     fmt::format("layer {} is sliding_attention, expected use_sliding_window true "
                                 "and a sliding_window",
                                 i));
      return windows;
    }
    windows[i] = is_sliding ? window : 0;
  }
  return windows;
}

std::vector<bool> read_sparse_layers(ConfigReader& reader, const CommonFields& fields,
                                     const Moe& moe) {
  const std::int64_t step = reader.integer("decoder_sparse_step", 1, {1, Limits::kPositions});
  const std::vector<std::int64_t> dense =
      reader.integers("mlp_only_layers", {-Limits::kPositions, Limits::kPositions});
  std::vector<bool> is_sparse;
  for (std::int64_t i = 0; i < fields.num_hidden_layers; ++i)
    is_sparse.push_back(moe.num_experts > 0 && (i + 1) % step == 0 &&
                        std::find(dense.begin(), dense.end(), i) == dense.end());
  return is_sparse;
}

Moe read_biased_experts(ConfigReader& reader, const CommonFields& fields, const Moe& defaults,
                        std::int64_t shared_experts) {
  Moe moe = defaults;
  moe.activation = fields.activation;
  const Range experts{1, Limits::kExperts};
  const auto other = reader.optional_integer("num_local_experts", std::nullopt, experts);
  moe.num_experts =
      reader.integer("n_routed_experts", other.value_or(defaults.num_experts), experts);
  if (other && *other != moe.num_experts)
    reader.invalid(
        "n_routed_experts",
        fmt::format("expected what num_local_experts says, {}, got {}", *other, moe.num_experts));
  require_experts(reader, "n_routed_experts", moe);
  moe.top_k = reader.integer("num_experts_per_tok", defaults.top_k, experts);
  moe.width = reader.integer("moe_intermediate_size", defaults.width, {1, Limits::kWidth});
  spec::RouterForm& form = moe.router.form;
  moe.router.is_saved_in_f32 = true;
  form.score = spec::RouterScore::kSigmoid;
  form.has_bias = true;
  form.group_score = spec::GroupScore::kTop2;
  read_groups(reader, moe);
  form.normalizes = reader.boolean("norm_topk_prob", form.normalizes);
  form.epsilon = form.normalizes ? 1e-20 : 0;
  form.scale = read_routed_scale(reader, form.scale);
  for (const auto& [key, only] :
       {std::pair("scoring_func", "sigmoid"), std::pair("topk_method", "noaux_tc")})
    if (const std::string word = reader.string(key, only); word != only)
      reader.unsupported(key, fmt::format("expected {}, got {}", only, word));
  if (moe.top_k < 1)
    reader.invalid("num_experts_per_tok", "expected at least one expert a token, got none");
  Mlp shared = fields.mlp();
  shared.width =
      moe.width * reader.integer("n_shared_experts", shared_experts, {0, Limits::kExperts});
  if (shared.width == 0)
    reader.invalid("n_shared_experts", "expected at least one shared expert, got none");
  moe.shared = SharedExpert{.mlp = shared};
  return moe;
}

std::vector<Spelling> with_shared_experts(std::vector<Spelling> spellings,
                                          const std::string& file) {
  for (Spelling& names : spellings)
    for (const char* part : {"gate", "up", "down"})
      for (const char* end : {"weight", "bias"})
        names.push_back({fmt::format("shared_expert.{}.{}", part, end),
                         {fmt::format("{}.{}_proj.{}", file, part, end)}});
  return spellings;
}

Spelling numbered_experts(const std::string& block) {
  const std::string expert = block + ".experts.{}.";
  return {{"router.weight", {block + ".gate.weight"}},
          {"experts.gate.weight", {expert + "w1.weight"}},
          {"experts.up.weight", {expert + "w3.weight"}},
          {"experts.down.weight", {expert + "w2.weight"}}};
}

Spelling fused_experts(const std::string& block) {
  const std::string gate_up = block + ".experts.gate_up_proj";
  return {{"router.weight", {block + ".gate.weight"}},
          {"experts.gate.weight", {gate_up}},
          {"experts.up.weight", {gate_up}},
          {"experts.down.weight", {block + ".experts.down_proj"}}};
}

}  // namespace anabatic::model
