// SPDX-License-Identifier: Apache-2.0
#include "train/convert/upcycle.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/json_edit.h"
#include "base/philox.h"
#include "model/declarations.h"
#include "model/quantization.h"

namespace anabatic::train {
namespace {

constexpr double kRouterDeviation = 0.02;

struct Target {
  const char *dense, *mixture, *architecture;
  const char *num_experts, *width;  // keys of config.json
};
constexpr Target kTargets[] = {
    {"llama", "mixtral", "MixtralForCausalLM", "num_local_experts", "intermediate_size"},
    {"mistral", "mixtral", "MixtralForCausalLM", "num_local_experts", "intermediate_size"},
    {"qwen2", "qwen2_moe", "Qwen2MoeForCausalLM", "num_experts", "moe_intermediate_size"},
    {"qwen3", "qwen3_moe", "Qwen3MoeForCausalLM", "num_experts", "moe_intermediate_size"},
};

const Target& target_of(const std::string& model_type) {
  const auto* found = std::find_if(std::begin(kTargets), std::end(kTargets),
                                   [&](const Target& row) { return row.dense == model_type; });
  if (found == std::end(kTargets))
    throw Unsupported(fmt::format(
        "[upcycle] model_type: expected llama, mistral, qwen2 or qwen3, got {}", model_type));
  return *found;
}

std::int64_t integer_of(const std::string& key, const std::string& text, std::int64_t low,
                        std::int64_t high) {
  std::size_t used = 0;
  std::int64_t value = -1;
  try {
    value = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  ANABATIC_REQUIRE(used > 0 && used == text.size() && low <= value && value <= high,
                   "[upcycle] {}: expected an integer in [{}, {}], got '{}'", key, low, high, text);
  return value;
}

double noise_of(const std::string& text) {
  std::size_t used = 0;
  double value = -1;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  ANABATIC_REQUIRE(used > 0 && used == text.size() && 0 <= value && value <= 1,
                   "[upcycle] noise: expected a number in [0, 1], got '{}'", text);
  return value;
}

const model::Mlp& dense_mlp(const model::ModelConfig& config) {
  const auto* mlp = std::get_if<model::Mlp>(&config.spec.layers.front().feed_forward);
  ANABATIC_CHECK(mlp != nullptr, "[upcycle] expected an MLP, got experts");
  return *mlp;
}

// Fields that a config may leave out, because its own class has them by default.
void add_defaults(Json& fields, const Json& json, const model::ModelConfig& dense) {
  const model::ModelSpec& spec = dense.spec;
  const auto set = [&](const char* key, const Json& value) {
    if (!json.contains(key)) fields[key] = value;
  };
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "num_key_value_heads", "head_dim"})
    for (const auto& [name, value] : dense.sizes)
      if (name == key) set(key, value);
  set("max_position_embeddings", dense.max_position_embeddings);
  set("rms_norm_eps", spec.norm_epsilon);
  set("initializer_range", spec.initializer_range);
  set("tie_word_embeddings", spec.head.is_tied);
  if (!json.contains("rope_parameters")) set("rope_theta", spec.rope.theta);
  set("bos_token_id", dense.bos_token_id < 0 ? Json() : Json(dense.bos_token_id));
  set("eos_token_id", dense.eos_token_ids.empty() ? Json() : Json(dense.eos_token_ids));
}

// The window of every layer, by the rules of the mixture's class.
void add_windows(Json& fields, const model::ModelConfig& dense) {
  Json types = Json::array();
  std::int64_t window = 0;
  for (const model::LayerSpec& layer : dense.spec.layers) {
    const std::int64_t own = std::get<model::Gqa>(layer.attention).window;
    window = std::max(window, own);
    types.push_back(own > 0 ? "sliding_attention" : "full_attention");
  }
  fields["sliding_window"] = window > 0 ? Json(window) : Json();
  if (dense.model_type == "qwen2" && window > 0) fields["layer_types"] = types;
}

// Names and shapes.
std::vector<std::pair<std::string, std::vector<std::int64_t>>> parameters_outside_mlps(
    const model::ModelSpec& spec) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> result;
  for (const model::Parameter& parameter : model::declare(spec).parameters) {
    const std::string name = parameter.name(), from = UpcycledWeights::origin(name);
    if (!from.empty() && from.find(".mlp.") == from.npos)
      result.emplace_back(name, parameter.shape);
  }
  return result;
}

}  // namespace

UpcycleOptions parse_upcycle(const std::string& text) {
  constexpr std::int64_t kMost = 4096;
  UpcycleOptions options;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    const std::size_t equals = item.find('=');
    const std::string key = item.substr(0, equals),
                      value = equals == std::string::npos ? "" : item.substr(equals + 1);
    if (key == "experts") {
      options.experts = integer_of(key, value, 1, kMost);
    } else if (key == "top_k") {
      options.top_k = integer_of(key, value, 1, kMost);
    } else if (key == "granularity") {
      options.granularity = integer_of(key, value, 1, kMost);
    } else if (key == "seed") {
      options.seed = integer_of(key, value, 0, INT64_MAX);
    } else if (key == "noise") {
      options.noise = noise_of(value);
    } else {
      throw InvalidArgument(fmt::format(
          "[upcycle] expected experts, top_k, granularity, noise or seed, got '{}'", item));
    }
    at = end + 1;
  }
  ANABATIC_REQUIRE(options.experts > 0 && options.top_k > 0,
                   "[upcycle] expected experts=NUMBER,top_k=NUMBER, got '{}'", text);
  ANABATIC_REQUIRE(options.top_k <= options.experts,
                   "[upcycle] top_k: expected at most {} experts, got {}", options.experts,
                   options.top_k);
  ANABATIC_REQUIRE(
      (options.granularity & (options.granularity - 1)) == 0,
      "[upcycle] granularity: expected a power of two, by which weights are multiplied "
      "without rounding, got {}",
      options.granularity);
  return options;
}

std::string to_text(const UpcycleOptions& options) {
  return fmt::format("experts={},top_k={},granularity={},noise={},seed={}", options.experts,
                     options.top_k, options.granularity, options.noise, options.seed);
}

std::string upcycled_config(const std::string& text, const model::ModelConfig& dense,
                            const UpcycleOptions& options) {
  const Target& target = target_of(dense.model_type);
  const std::int64_t width = dense_mlp(dense).width;
  ANABATIC_REQUIRE(width % options.granularity == 0,
                   "[upcycle] granularity: expected a divisor of intermediate_size {}, got {}",
                   width, options.granularity);
  Json fields{{"model_type", target.mixture},
              {"architectures", {target.architecture}},
              {target.num_experts, options.experts * options.granularity},
              {"num_experts_per_tok", options.top_k * options.granularity}};
  std::string result = model::without_quantization(text);
  if (dense.model_type == "qwen2") {  // its class does not read the two
    fields["qkv_bias"] = true;
    fields["shared_expert_intermediate_size"] = width;
    result = without_member(result, "attention_bias");
  }
  if (std::string_view(target.mixture) != "mixtral")
    fields.update(
        {{"norm_topk_prob", true}, {"decoder_sparse_step", 1}, {"mlp_only_layers", Json::array()}});
  add_defaults(fields, parse_json(text), dense);
  add_windows(fields, dense);
  fields[target.width] = width / options.granularity;
  for (const auto& [key, value] : fields.items())
    result = with_member(result, key, dump_json(value));
  return result;
}

void require_same_body(const model::ModelConfig& dense, const model::ModelConfig& mixture) {
  const auto is_equal_attention = [](const model::LayerSpec& a, const model::LayerSpec& b) {
    const auto &one = std::get<model::Gqa>(a.attention), &two = std::get<model::Gqa>(b.attention);
    return one.num_heads == two.num_heads && one.num_kv_heads == two.num_kv_heads &&
           one.head_dim == two.head_dim && one.qk_norm == two.qk_norm && one.window == two.window;
  };
  const auto require = [](bool is_equal, const char* what) {
    ANABATIC_REQUIRE(is_equal,
                     "[upcycle] {}: expected that of the dense model, got another; the family of "
                     "the mixture cannot say it",
                     what);
  };
  const model::ModelSpec &a = dense.spec, &b = mixture.spec;
  require(std::equal(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(),
                     is_equal_attention),
          "attention and its windows");
  require(a.rope == b.rope, "rotary embedding");
  require(a.norm_epsilon == b.norm_epsilon, "rms_norm_eps");
  require(dense_mlp(dense).activation.kind == model::first_moe(b)->activation.kind, "hidden_act");
  require(!dense_mlp(dense).bias, "mlp_bias");
  require(parameters_outside_mlps(a) == parameters_outside_mlps(b), "parameters outside MLPs");
}

UpcycledWeights::UpcycledWeights(model::StateReader source, const model::ModelConfig& dense,
                                 const model::ModelConfig& mixture, const UpcycleOptions& options)
    : source_(std::move(source)),
      options_(options),
      hidden_(dense.spec.hidden_size),
      width_(dense_mlp(dense).width) {
  require_same_body(dense, mixture);
  std::set<std::string> used;
  for (const model::Parameter& parameter : model::declare(mixture.spec).parameters)
    used.insert(origin(parameter.name()));
  for (const model::Parameter& parameter : model::declare(dense.spec).parameters)
    ANABATIC_REQUIRE(used.count(parameter.name()) > 0,
                     "[upcycle] {}: expected a place in the mixture, found none", parameter.name());
}

std::string UpcycledWeights::origin(std::string_view state) {
  const auto is = [&](std::string_view part) { return state.find(part) != state.npos; };
  if (is(".router.") || is(".row_gate.")) return "";
  std::string name(state);
  for (const std::string_view block : {".experts.", ".shared_expert."})
    if (const auto at = name.find(block); at != name.npos) name.replace(at, block.size(), ".mlp.");
  return name;
}

void UpcycledWeights::read(std::string_view state, std::int64_t first,
                           std::span<float> values) const {
  const std::string from = origin(state);
  if (state.find(".shared_expert.row_gate.") != state.npos ||
      state.find(".shared_expert.down.") != state.npos) {
    std::fill(values.begin(), values.end(), 0.0f);
  } else if (from.empty()) {
    const auto element = [&](std::int64_t at) {  // that of the row's copy
      return at / (hidden_ * options_.granularity) * hidden_ + at % hidden_;
    };
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(
          kRouterDeviation *
          random_normal(static_cast<std::uint64_t>(options_.seed), stream_of(state),
                        static_cast<std::uint64_t>(element(first + static_cast<std::int64_t>(i)))));
  } else if (state.find(".experts.") != state.npos) {
    read_expert(state, from, first, values);
  } else {
    source_(from, first, values);
  }
}

// Gate and up [E·G, I/G, H] are rows of the MLP's, copy after copy. Down [E·G, H, I/G] has columns.
void UpcycledWeights::read_expert(std::string_view state, const std::string& from,
                                  std::int64_t first, std::span<float> values) const {
  const bool is_down = state.ends_with(".down.weight");
  const std::int64_t whole = hidden_ * width_, part = width_ / options_.granularity;
  const auto scale = static_cast<float>(options_.granularity);
  const std::span<float> all = values;
  for (std::int64_t at = first; !values.empty();) {
    std::int64_t begin = at % whole, count = whole - begin;
    if (is_down) {
      const std::int64_t expert = at / (hidden_ * part) % options_.granularity,
                         row = at / part % hidden_, column = at % part;
      begin = row * width_ + expert * part + column;
      count = part - column;
    }
    count = std::min(count, static_cast<std::int64_t>(values.size()));
    const auto piece = values.first(static_cast<std::size_t>(count));
    source_(from, begin, piece);
    if (is_down)
      for (float& value : piece) value *= scale;
    values = values.subspan(piece.size());
    at += count;
  }
  if (options_.noise == 0) return;
  const std::uint64_t stream = stream_of(state);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] *= static_cast<float>(
        1 + options_.noise * random_normal(static_cast<std::uint64_t>(options_.seed), stream,
                                           static_cast<std::uint64_t>(first) + i));
}

}  // namespace anabatic::train
