// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "io/safetensors.h"
#include "model/family.h"
#include "model/float_conversion.h"
#include "model/parameters.h"
#include "model/weight_files.h"
#include "model/weights.h"

namespace anabatic::model {
namespace {

constexpr std::string_view kEmbedding = "model.embed_tokens.weight", kHead = "lm_head.weight";

DType export_dtype(const ModelConfig& config) {
  if (config.dtype == "bfloat16") return DType::kBFloat16;
  if (config.dtype == "float16") return DType::kFloat16;
  return DType::kFloat32;
}

class MapBuilder {
 public:
  MapBuilder(const ModelConfig& config, WeightSpelling spelling, DType dtype)
      : config_(config), dtype_(dtype) {
    map_.spelling = spelling;
    if (const Family* family = find_family(config.model_type); family != nullptr)
      experts_ = family->experts;
  }

  WeightMap build() {
    whole(std::string(kEmbedding), "embedding.weight", {config_.vocab_size, config_.hidden_size});
    for (std::int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) add_layer(layer);
    whole("model.norm.weight", "norm.weight", {config_.hidden_size});
    if (!config_.tie_word_embeddings)
      whole(std::string(kHead), "head.weight", {config_.vocab_size, config_.hidden_size});
    return std::move(map_);
  }

 private:
  void whole(std::string name, const std::string& state, std::vector<std::int64_t> shape) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    map_.tensors.push_back({std::move(name), dtype_, std::move(shape), {{state, 0, count}}});
  }

  std::string_view block() const {
    return map_.spelling.block_is_mlp ? "mlp" : experts_.value().block;
  }

  void add_layer(std::int64_t layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const std::string state_prefix = layer_state(layer, "");
    for (const Parameter& parameter : layer_parameters(config_, layer)) {
      const std::string rest = parameter.name.substr(state_prefix.size());
      if (parameter.kind == ParameterKind::kExperts) {
        if (rest == "experts.gate.weight") add_experts(prefix, state_prefix);
      } else if (parameter.kind == ParameterKind::kRouter) {
        whole(fmt::format("{}{}.gate.weight", prefix, block()), parameter.name, parameter.shape);
      } else {
        whole(prefix + dense_name(rest), parameter.name, parameter.shape);
      }
    }
  }

  static std::string dense_name(const std::string& rest) {
    if (rest == "attention_norm.weight") return "input_layernorm.weight";
    if (rest == "mlp_norm.weight") return "post_attention_layernorm.weight";
    const auto last = rest.rfind('.');
    const std::string kind = rest.substr(last), middle = rest.substr(0, last);
    const auto dot = middle.find('.');
    const std::string block = middle.substr(0, dot) == "attention" ? "self_attn" : "mlp";
    const std::string which = middle.substr(dot + 1);
    const bool is_norm = which == "q_norm" || which == "k_norm";
    return fmt::format("{}.{}{}{}", block, which, is_norm ? "" : "_proj", kind);
  }

  void add_experts(const std::string& prefix, const std::string& state_prefix) {
    const std::int64_t hidden = config_.hidden_size, inner = config_.moe_intermediate_size,
                       experts = config_.num_experts, matrix = hidden * inner;
    const std::string gate = state_prefix + "experts.gate.weight",
                      up = state_prefix + "experts.up.weight",
                      down = state_prefix + "experts.down.weight";
    const std::string base = fmt::format("{}{}.experts.", prefix, block());
    if (map_.spelling.fused_experts) {
      FileTensor gate_up{base + "gate_up_proj", dtype_, {experts, 2 * inner, hidden}, {}};
      for (std::int64_t e = 0; e < experts; ++e) {
        gate_up.pieces.push_back({gate, e * matrix, matrix});
        gate_up.pieces.push_back({up, e * matrix, matrix});
      }
      map_.tensors.push_back(std::move(gate_up));
      whole(base + "down_proj", down, {experts, hidden, inner});
      return;
    }
    for (std::int64_t e = 0; e < experts; ++e) {
      const auto one = [&](std::string_view which, const std::string& state, std::int64_t out,
                           std::int64_t in) {
        map_.tensors.push_back({fmt::format("{}{}.{}.weight", base, e, which),
                                dtype_,
                                {out, in},
                                {{state, e * matrix, matrix}}});
      };
      one(experts_->gate, gate, inner, hidden);
      one(experts_->up, up, inner, hidden);
      one(experts_->down, down, hidden, inner);
    }
  }

  const ModelConfig& config_;
  DType dtype_;
  std::optional<ExpertNames> experts_;
  WeightMap map_;
};

// One tensor of the fused spelling, or of the newer block, decides: a mixture shows up as missing
// and surplus.
WeightSpelling detect_spelling(const ModelConfig& config, const io::SafetensorsDirectory& files) {
  WeightSpelling spelling;
  if (config.num_experts == 0) return spelling;
  bool has_old_block = false, has_mlp = false;
  for (const auto& [name, entry] : files.entries()) {
    spelling.fused_experts |= name.find(".experts.gate_up_proj") != std::string::npos;
    has_old_block |= name.find(".block_sparse_moe.") != std::string::npos;
    has_mlp |= name.find(".mlp.experts.") != std::string::npos;
  }
  spelling.block_is_mlp = has_mlp && !has_old_block;
  return spelling;
}

// A buffer of older versions that holds nothing trained.
bool is_ignorable(std::string_view name) {
  constexpr std::string_view kEnd = ".rotary_emb.inv_freq";
  return name.size() >= kEnd.size() && name.substr(name.size() - kEnd.size()) == kEnd;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape)
    text += fmt::format("{}{}", text.size() > 1 ? "," : "", size);
  return text + "]";
}

// Adds "NAME: expected ..., got ..." lines; a checkpoint of another model has thousands, so the
// lists stop.
class Problems {
 public:
  void add(const std::string& line) {
    constexpr std::size_t kMost = 100;
    if (++count_ <= kMost) text_ += "\n  " + line;
  }
  void require_none(const std::filesystem::path& directory) const {
    if (count_ == 0) return;
    throw InvalidArgument(fmt::format("[weights] {}: {} tensors do not fit the config:{}{}",
                                      directory.string(), count_, text_,
                                      count_ > 100 ? "\n  ..." : ""));
  }

 private:
  std::size_t count_ = 0;
  std::string text_;
};

void check_tensor(FileTensor& tensor, const io::TensorEntry& entry, Problems& problems) {
  if (entry.shape != tensor.shape)
    problems.add(fmt::format("{}: expected shape {}, got {}", tensor.name, shape_text(tensor.shape),
                             shape_text(entry.shape)));
  if (!entry.dtype || !is_weight_dtype(*entry.dtype))
    problems.add(fmt::format("{}: expected dtype F32, BF16, F16 or F64, got {}", tensor.name,
                             entry.dtype_name));
  else
    tensor.dtype = *entry.dtype;
}

}  // namespace

WeightMap make_weight_map(const ModelConfig& config, WeightSpelling spelling, DType dtype) {
  return MapBuilder(config, spelling, dtype).build();
}

WeightMap make_weight_map(const ModelConfig& config) {
  return make_weight_map(config, {}, export_dtype(config));
}

WeightMap match_weight_map(const ModelConfig& config, const io::SafetensorsDirectory& files,
                           const std::filesystem::path& directory) {
  WeightMap map = make_weight_map(config, detect_spelling(config, files), DType::kFloat32);
  if (config.tie_word_embeddings && files.find(kEmbedding) == nullptr &&
      files.find(kHead) != nullptr)
    map.tensors.front().name = std::string(kHead);  // the one that is there stands for both
  Problems problems;
  std::set<std::string_view> expected;
  for (FileTensor& tensor : map.tensors) {
    expected.insert(tensor.name);
    const io::TensorEntry* entry = files.find(tensor.name);
    if (entry == nullptr)
      problems.add(
          fmt::format("{}: missing, expected shape {}", tensor.name, shape_text(tensor.shape)));
    else
      check_tensor(tensor, *entry, problems);
  }
  for (const auto& [name, entry] : files.entries()) {
    if (expected.count(name) != 0 || is_ignorable(name)) continue;
    if (config.tie_word_embeddings && name == kHead) {
      FileTensor head{std::string(kHead), DType::kFloat32, map.tensors.front().shape, {}};
      check_tensor(head, entry, problems);
      continue;
    }
    problems.add(fmt::format("{}: surplus, shape {}", name, shape_text(entry.shape)));
  }
  problems.require_none(directory);
  return map;
}

WeightMap read_weight_map(const ModelConfig& config, const std::filesystem::path& directory) {
  return match_weight_map(config, io::SafetensorsDirectory::open(directory), directory);
}

void require_tied_head(const ModelConfig& config, const io::SafetensorsDirectory& files,
                       const std::filesystem::path& directory) {
  if (!config.tie_word_embeddings) return;
  const io::TensorEntry *embedding = files.find(kEmbedding), *head = files.find(kHead);
  if (embedding == nullptr || head == nullptr) return;
  bool is_equal = embedding->dtype == head->dtype && embedding->data.size() == head->data.size() &&
                  std::equal(embedding->data.begin(), embedding->data.end(), head->data.begin());
  ANABATIC_REQUIRE(
      is_equal,
      "[weights] {}: expected {} to equal {}, because tie_word_embeddings is true; set "
      "it to false to train both",
      directory.string(), kHead, kEmbedding);
}

}  // namespace anabatic::model
