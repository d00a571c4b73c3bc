// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "io/problems.h"
#include "model/gguf_layout.h"
#include "model/gguf_model.h"
#include "spec/rope.h"

namespace anabatic::model {
namespace {

// Keys of an architecture that say nothing about the maths.
constexpr std::string_view kHarmlessKeys[] = {"tensor_data_layout", "rope.scaling.finetuned"};

// The shortest decimal that is this f32: 1e-05, where the double next to it has sixteen digits.
double shortest(double value) {
  const auto narrow = static_cast<float>(value);
  return static_cast<double>(narrow) == value ? std::stod(fmt::format("{}", narrow)) : value;
}

class ConfigWriter {
 public:
  explicit ConfigWriter(const io::GgufFiles& files) : files_(files), metadata_(files.metadata()) {}

  std::string write() {
    find_architecture();
    add_sizes();
    add_attention();
    add_rope();
    if (num_experts_ > 0) add_experts();
    add_tokens();
    json_["tie_word_embeddings"] = files_.find("output.weight") == nullptr;
    json_["dtype"] = dtype();
    refuse_other_keys();
    fail_if_any();
    return dump_json(json_, 2) + "\n";
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }
  void invalid(std::string_view name, std::string_view problem) {
    invalid_.push_back(fmt::format("key {}: {}", io::shown(key(name)), problem));
  }
  void unsupported(std::string_view name, std::string_view problem) {
    unsupported_.push_back(fmt::format("key {}: {}", io::shown(key(name)), problem));
  }

  std::optional<std::int64_t> integer(std::string_view name) {
    known_.insert(key(name));
    return metadata_.integer(key(name));
  }
  std::int64_t required(std::string_view name) { return or_missing(name, integer(name)); }
  std::int64_t or_missing(std::string_view name, std::optional<std::int64_t> value) {
    if (!value) invalid(name, "is missing");
    return value.value_or(1);
  }
  std::optional<double> number(std::string_view name) {
    known_.insert(key(name));
    const auto value = metadata_.number(key(name));
    if (!value || std::isfinite(*value)) return value;
    invalid(name, fmt::format("expected a finite number, got {}", *value));
    return 1.0;
  }
  // One for all layers, or a list of equal ones.
  std::optional<std::int64_t> uniform(std::string_view name) {
    const io::GgufValue* value = metadata_.find(key(name));
    if (value == nullptr || !value->is_array) return integer(name);
    known_.insert(key(name));
    const std::vector<std::int64_t> all = *metadata_.integers(key(name));
    if (all.empty()) return std::nullopt;
    if (std::ranges::any_of(all, [&](std::int64_t each) { return each != all.front(); }))
      unsupported(name, "expected the same number for every layer");
    return all.front();
  }

  void find_architecture() {
    const auto name = metadata_.text("general.architecture");
    ANABATIC_REQUIRE(name, "[gguf] {}: key general.architecture: is missing",
                     metadata_.file().string());
    const auto experts = metadata_.integer(fmt::format("{}.expert_count", *name)).value_or(0);
    const bool has_shared = files_.find("blk.0.ffn_up_shexp.weight") != nullptr;
    architecture_ = find_gguf_architecture(*name, experts > 0, has_shared);
    if (architecture_ == nullptr)
      throw Unsupported(
          fmt::format("[gguf] {}: key general.architecture: expected one of {}, got {}{}",
                      metadata_.file().string(), gguf_architecture_names(), io::shown(*name),
                      experts > 0 ? " with experts" : ""));
    prefix_ = architecture_->name;
    num_experts_ = integer("expert_count").value_or(0);
    json_["architectures"] = {architecture_->class_name};
    json_["model_type"] = architecture_->model_type;
  }

  void add_sizes() {
    const io::GgufTensor* embedding = files_.find("token_embd.weight");
    const std::int64_t rows =
        embedding != nullptr && embedding->shape.size() == 2 ? embedding->shape.front() : 0;
    if (rows == 0) invalid_.emplace_back("tensor token_embd.weight: expected a matrix, got none");
    vocab_size_ = integer("vocab_size").value_or(rows);
    if (vocab_size_ != rows)
      invalid("vocab_size", fmt::format("is {}, token_embd.weight has {} rows", vocab_size_, rows));
    hidden_size_ = required("embedding_length");
    json_["vocab_size"] = vocab_size_;
    json_["hidden_size"] = hidden_size_;
    json_["intermediate_size"] = or_missing("feed_forward_length", uniform("feed_forward_length"));
    json_["num_hidden_layers"] = required("block_count");
    json_["max_position_embeddings"] = required("context_length");
    json_["hidden_act"] = "silu";
    const auto epsilon = number("attention.layer_norm_rms_epsilon");
    if (!epsilon) invalid("attention.layer_norm_rms_epsilon", "is missing");
    json_["rms_norm_eps"] = shortest(epsilon.value_or(0.0));
  }

  void add_attention() {
    const std::int64_t heads = or_missing("attention.head_count", uniform("attention.head_count"));
    json_["num_attention_heads"] = heads;
    json_["num_key_value_heads"] = uniform("attention.head_count_kv").value_or(heads);
    const auto key_length = integer("attention.key_length");
    head_dim_ = key_length.value_or(heads > 0 ? hidden_size_ / heads : 0);
    if (key_length) json_["head_dim"] = head_dim_;
    expect("attention.value_length", head_dim_);
    expect("rope.dimension_count", head_dim_);
    const std::string type = json_["model_type"];
    if (type != "mixtral" && !architecture_->has_qkv_bias)
      json_["attention_bias"] = files_.find("blk.0.attn_q.bias") != nullptr;
    if (type == "llama") json_["mlp_bias"] = files_.find("blk.0.ffn_gate.bias") != nullptr;
    if (architecture_->has_scales) add_scales();
    if (architecture_->has_windows) json_["sliding_window"] = required("attention.sliding_window");
  }

  // Absent and 0 stand for none.
  void add_scales() {
    const auto scale = [&](std::string_view name, double fallback) {
      const double value = shortest(number(name).value_or(0.0));
      return value == 0.0 ? fallback : value;
    };
    json_["attention_multiplier"] =
        scale("attention.scale", 1.0 / std::sqrt(static_cast<double>(head_dim_)));
    json_["embedding_multiplier"] = scale("embedding_scale", 1.0);
    json_["residual_multiplier"] = scale("residual_scale", 1.0);
    json_["logits_scaling"] = scale("logit_scale", 1.0);
  }

  // The one value that an optional key may have.
  void expect(std::string_view name, std::int64_t value) {
    const std::int64_t found = integer(name).value_or(value);
    if (found != value) unsupported(name, fmt::format("expected {}, got {}", value, found));
  }

  void add_rope() {
    const double theta = shortest(number("rope.freq_base").value_or(10000.0));
    json_["rope_theta"] = theta;
    known_.insert(key("rope.scaling.type"));
    const std::string type(metadata_.text(key("rope.scaling.type")).value_or("linear"));
    const auto old_factor = number("rope.scale_linear");
    const double factor = number("rope.scaling.factor").value_or(old_factor.value_or(1.0));
    const auto original = integer("rope.scaling.original_context_length");
    const bool is_scaled = type != "none" && factor != 0.0 && factor != 1.0;
    if (type == "yarn" && is_scaled) {
      json_["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", shortest(factor)}};
      if (original) json_["rope_scaling"]["original_max_position_embeddings"] = *original;
      for (const char* bound : {"beta_fast", "beta_slow"})
        if (const auto value = number(fmt::format("rope.scaling.yarn_{}", bound)))
          json_["rope_scaling"][bound] = shortest(*value);
      if (architecture_->has_exact_yarn)
        json_["rope_scaling"]["truncate"] = metadata_.boolean(kRopeTruncateKey).value_or(false);
    } else if (type == "linear" && is_scaled) {
      json_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", shortest(factor)}};
    } else if (type != "none" && type != "linear" && type != "yarn") {
      unsupported("rope.scaling.type",
                  fmt::format("expected none, linear or yarn, got {}", io::shown(type)));
    }
    // Its class scales by yarn where a config says nothing.
    if (architecture_->has_exact_yarn && !json_.contains("rope_scaling"))
      json_["rope_scaling"] = {{"rope_type", "default"}};
    if (const io::GgufTensor* factors = files_.find("rope_freqs.weight"); factors != nullptr)
      add_llama3(*factors, theta, is_scaled);
  }

  // Frequencies are divided by these factors. They have to be those of llama3 with the parameters
  // that all its files have, where the file does not name them.
  void add_llama3(const io::GgufTensor& tensor, double theta, bool is_scaled) {
    constexpr double kRounding = 1e-5;
    const std::int64_t original = metadata_.integer(kRopeOriginalKey).value_or(8192);
    const double low = shortest(metadata_.number(kRopeLowKey).value_or(1.0)),
                 high = shortest(metadata_.number(kRopeHighKey).value_or(4.0));
    const auto refuse = [&] {
      unsupported_.push_back(fmt::format(
          "tensor rope_freqs.weight: expected the factors of llama3 with low_freq_factor {}, "
          "high_freq_factor {} and original_max_position_embeddings {}",
          low, high, original));
    };
    if (tensor.type->name != "F32" || tensor.shape != std::vector{head_dim_ / 2} || head_dim_ < 2 ||
        head_dim_ % 2 != 0 || is_scaled || original < 1 || !(0 < low && low < high))
      return refuse();
    std::vector<float> factors(static_cast<std::size_t>(head_dim_ / 2));
    io::dequantise(*tensor.type, tensor.data, factors);
    const double factor =
        metadata_.number(kRopeFactorKey).value_or(static_cast<double>(factors.back()));
    if (!(factor >= 1.0 && factor < 1e6)) return refuse();
    spec::Rope rope{.rotary_dim = head_dim_, .theta = theta};
    const auto plain = spec::rope_frequencies(rope, 1).inverse;
    rope.variant = "llama3";
    rope.factor = factor;
    rope.original_max_position = original;
    rope.low_freq_factor = low;
    rope.high_freq_factor = high;
    const auto scaled = spec::rope_frequencies(rope, 1).inverse;
    for (std::size_t i = 0; i < factors.size(); ++i)
      if (!(std::abs(scaled[i] * factors[i] - plain[i]) <= kRounding * plain[i])) return refuse();
    json_["rope_scaling"] = {{"rope_type", "llama3"},
                             {"factor", factor},
                             {"low_freq_factor", low},
                             {"high_freq_factor", high},
                             {"original_max_position_embeddings", original}};
  }

  void add_experts() {
    const bool is_local = architecture_->has_mlp_width && prefix_ != "olmoe";
    const std::int64_t chosen = required("expert_used_count");
    json_[is_local ? "num_local_experts" : "num_experts"] = num_experts_;
    json_["num_experts_per_tok"] = chosen;
    const auto width = json_["intermediate_size"].get<std::int64_t>();
    if (architecture_->has_shared)
      json_[architecture_->has_shared_gate ? "shared_expert_intermediate_size"
                                           : "shared_intermediate_size"] =
          integer("expert_shared_feed_forward_length").value_or(width);
    if (!is_local) json_["norm_topk_prob"] = architecture_->normalizes;
    if (architecture_->has_mlp_width)
      expect("expert_feed_forward_length", width);
    else
      json_["moe_intermediate_size"] =
          integer("expert_feed_forward_length").value_or(chosen > 0 ? width / chosen : width);
  }

  // Ids beyond the vocabulary stand for none.
  void add_tokens() {
    for (const char* name : {"bos_token_id", "eos_token_id"}) {
      const auto id = metadata_.integer(fmt::format("tokenizer.ggml.{}", name));
      if (id && *id >= 0 && *id < vocab_size_)
        json_[name] = *id;
      else
        json_[name] = nullptr;
    }
  }

  std::string_view dtype() const {
    std::map<std::string_view, std::int64_t> elements;
    for (const auto& [name, tensor] : files_.tensors())
      if (tensor.shape.size() > 1) elements[tensor.type->name] += tensor.num_elements();
    const auto most =
        std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; });
    if (most == elements.end()) return "float32";
    return most->first == "BF16" ? "bfloat16" : most->first == "F16" ? "float16" : "float32";
  }

  void refuse_other_keys() {
    const std::string begin = key("");
    for (const auto& [name, value] : metadata_.entries()) {
      if (!name.starts_with(begin) || known_.contains(name)) continue;
      const std::string_view rest = name.substr(begin.size());
      if (std::ranges::find(kHarmlessKeys, rest) == std::end(kHarmlessKeys))
        unsupported(rest, "has no place in a config.json of this model");
    }
  }

  void fail_if_any() const {
    std::vector<std::string> all = invalid_;
    for (const std::string& problem : unsupported_) all.push_back("not supported: " + problem);
    if (all.empty()) return;
    const std::string text = io::problem_text("gguf", metadata_.file().string(), all);
    if (invalid_.empty()) throw Unsupported(text);
    throw InvalidArgument(text);
  }

  const io::GgufFiles& files_;
  const io::GgufMetadata& metadata_;
  const GgufArchitecture* architecture_ = nullptr;
  std::string prefix_;
  std::int64_t num_experts_ = 0, vocab_size_ = 0, hidden_size_ = 1, head_dim_ = 0;
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> invalid_, unsupported_;
  OrderedJson json_;
};

}  // namespace

std::string gguf_config(const io::GgufFiles& files) { return ConfigWriter(files).write(); }

}  // namespace anabatic::model
