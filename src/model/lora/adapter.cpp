// SPDX-License-Identifier: Apache-2.0
#include "model/lora/adapter.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "io/tokenizer/regex.h"
#include "model/weight_files.h"

namespace anabatic::model {
namespace {

constexpr std::string_view kWeight = ".weight", kAll = "all";
constexpr std::array<std::string_view, kNumAdapterKinds> kKindNames{
    "attention", "mlp", "shared", "experts", "router", "embedding", "head"};

std::string_view without_weight(std::string_view parameter) {
  return parameter.substr(0, parameter.size() - kWeight.size());
}

std::string name_of_group(const std::vector<const Parameter*>& weights) {
  std::string name(without_weight(weights.front()->name()));
  for (std::size_t i = 1; i < weights.size(); ++i) {
    const std::string_view key = without_weight(weights[i]->key);
    name += fmt::format("_{}", key.substr(key.rfind('.') + 1));
  }
  return name;
}

bool is_in_all(AdapterKind kind) {
  return kind != AdapterKind::kRouter && kind != AdapterKind::kEmbedding &&
         kind != AdapterKind::kHead;
}

// Those of the product that a weight is in. That of a table is with its transposed.
std::int64_t columns_of(const Parameter& weight) {
  return adapter_kind(weight) == AdapterKind::kEmbedding ? weight.shape.front()
                                                         : weight.shape.back();
}
std::int64_t rows_of(const Parameter& weight) {
  return adapter_kind(weight) == AdapterKind::kEmbedding ? weight.shape.back()
                                                         : *(weight.shape.end() - 2);
}

bool is_found(const io::tokenizer::Regex& expression, std::string_view name) {
  io::tokenizer::RegexScratch scratch;
  io::tokenizer::Match match;
  return expression.find(name, 0, scratch, match);
}

// A word of the list, else a regular expression.
class Target {
 public:
  explicit Target(const std::string& text) {
    const auto word = std::ranges::find(kKindNames, text);
    if (word != kKindNames.end()) {
      kind_ = static_cast<AdapterKind>(word - kKindNames.begin());
    } else if (text != kAll) {
      expression_.emplace(text, "[lora] lora.targets");
    }
  }

  bool meets(const std::string& parameter, AdapterKind kind) const {
    if (expression_) return is_found(*expression_, parameter);
    return kind_ ? kind == *kind_ : is_in_all(kind);
  }

 private:
  std::optional<AdapterKind> kind_;  // none: all
  std::optional<io::tokenizer::Regex> expression_;
};

// "attention (8 weights, such as layers.0.attention.q.weight), ..."
std::string what_there_is(const std::vector<AdaptableTensor>& tensors) {
  std::map<AdapterKind, std::pair<std::size_t, std::string>> kinds;
  for (const AdaptableTensor& tensor : tensors)
    for (const Parameter* weight : tensor.weights) {
      auto& [count, example] = kinds[tensor.kind];
      if (count++ == 0) example = weight->name();
    }
  std::string text;
  for (const auto& [kind, found] : kinds)
    text += fmt::format("{}{} ({} weight{}, such as {})", text.empty() ? "" : ", ", to_string(kind),
                        found.first, found.first == 1 ? "" : "s", found.second);
  return text;
}

}  // namespace

std::string_view to_string(AdapterKind kind) {
  return kKindNames.at(static_cast<std::size_t>(kind));
}

std::optional<AdapterKind> adapter_kind(const Parameter& parameter) {
  if (parameter.shape.size() < 2 || !parameter.key.ends_with(kWeight)) return std::nullopt;
  const std::string_view key = parameter.key;
  using enum AdapterKind;
  if (key.starts_with("attention.")) return kAttention;
  if (key.starts_with("experts.")) return kExperts;
  if (key.starts_with("router.") || key.starts_with("shared_expert.row_gate")) return kRouter;
  if (key.starts_with("shared_expert.")) return kShared;
  if (key.starts_with("mlp.")) return kMlp;
  return key.starts_with("head.") ? kHead : kEmbedding;
}

std::string AdapterPart::b() const { return fmt::format("{}.lora_B", without_weight(parameter)); }

double AdapterGroup::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (divides_by_root ? std::sqrt(r) : r);
}

std::string AdapterGroup::a() const { return name + ".lora_A"; }

std::vector<std::int64_t> AdapterGroup::a_shape() const {
  if (is_table()) return {columns, rank};
  if (num_experts == 0) return {rank, columns};
  return {num_experts, rank, columns};
}

std::vector<std::int64_t> AdapterGroup::b_shape(const AdapterPart& part) const {
  if (num_experts == 0) return {part.rows, rank};
  return {num_experts, part.rows, rank};
}

std::int64_t AdapterGroup::num_elements() const {
  std::int64_t rows = columns;
  for (const AdapterPart& part : parts) rows += part.rows;
  return std::max(num_experts, std::int64_t{1}) * rank * rows;
}

std::int64_t AdapterGroup::num_multiplied() const {
  const std::int64_t of_one = num_elements() / std::max(num_experts, std::int64_t{1});
  return is_table() ? of_one - rank * columns : of_one;
}

std::int64_t Adapter::num_elements() const {
  std::int64_t elements = 0;
  for (const AdapterGroup& group : groups) elements += group.num_elements();
  return elements;
}

const AdapterGroup* Adapter::find(std::string_view parameter) const {
  for (const AdapterGroup& group : groups)
    for (const AdapterPart& part : group.parts)
      if (part.parameter == parameter) return &group;
  return nullptr;
}

std::size_t module_spelling(const ModelConfig& config) {
  const std::vector<Spelling>& spellings = config.spec.spellings;
  if (num_experts(config.spec) == 0) return 0;
  const Declarations declared = declare(config.spec, false);
  const auto stack = std::ranges::find_if(declared.parameters, [](const Parameter& parameter) {
    return parameter.is_per_expert() && adapter_kind(parameter);
  });
  for (std::size_t i = spellings.size(); i-- > 0;)
    if (!has_tensor_per_expert(*stack, spellings[i]) && i != mxfp4_spelling(config)) return i;
  return 0;
}

Declarations adaptable_parameters(const ModelConfig& config) {
  ModelSpec spec = config.spec;
  spec.head.is_tied = false;
  return declare(spec, false);
}

std::vector<AdaptableTensor> adaptable_tensors(const ModelConfig& config,
                                               const Declarations& declared) {
  const Spelling& names = config.spec.spellings.at(module_spelling(config));
  std::vector<AdaptableTensor> tensors;
  std::map<std::string, std::size_t> places;
  for (const Parameter& parameter : declared.parameters) {
    const std::optional<AdapterKind> kind = adapter_kind(parameter);
    if (!kind) continue;
    std::string file = file_tensor(parameter, names, 0);
    const auto [place, is_new] = places.try_emplace(file, tensors.size());
    if (is_new) tensors.push_back({.file = std::move(file), .kind = *kind, .weights = {}});
    tensors[place->second].weights.push_back(&parameter);
  }
  return tensors;
}

AdapterGroup make_group(const std::vector<const Parameter*>& weights, AdapterKind kind,
                        std::int64_t rank, double alpha, bool divides_by_root) {
  const Parameter& first = *weights.front();
  AdapterGroup group{.name = name_of_group(weights),
                     .kind = kind,
                     .num_experts = first.is_per_expert() ? first.shape[0] : 0,
                     .columns = columns_of(first),
                     .rank = rank,
                     .alpha = alpha,
                     .divides_by_root = divides_by_root,
                     .parts = {}};
  for (const Parameter* weight : weights) {
    ANABATIC_CHECK(columns_of(*weight) == group.columns, "[lora] {} and {} read other rows",
                   first.name(), weight->name());
    group.parts.push_back({weight->name(), rows_of(*weight)});
  }
  return group;
}

Adapter choose_adapter(const ModelConfig& config, const AdapterRequest& request) {
  const Declarations declared = adaptable_parameters(config);
  const std::vector<AdaptableTensor> tensors = adaptable_tensors(config, declared);
  std::set<const Parameter*> chosen;
  for (const std::string& text : request.targets) {
    const Target target(text);
    bool meets_one = false;
    for (const AdaptableTensor& tensor : tensors)
      for (const Parameter* weight : tensor.weights) {
        if (!target.meets(weight->name(), tensor.kind)) continue;
        chosen.insert(weight);
        meets_one = true;
      }
    ANABATIC_REQUIRE(meets_one, "[lora] lora.targets: '{}' meets no weight of this {}; it has {}",
                     text, config.model_type, what_there_is(tensors));
  }
  const auto group_of = [&](const std::vector<const Parameter*>& weights, AdapterKind kind) {
    return make_group(weights, kind, request.rank, request.alpha, request.divides_by_root);
  };
  Adapter adapter;
  for (const AdaptableTensor& tensor : tensors) {
    const auto is_chosen = [&](const Parameter* weight) { return chosen.contains(weight); };
    if (std::ranges::none_of(tensor.weights, is_chosen)) continue;
    const auto left_out = std::ranges::find_if_not(tensor.weights, is_chosen);
    ANABATIC_REQUIRE(left_out == tensor.weights.end(),
                     "[lora] lora.targets: expected all weights of {}, which is one tensor in "
                     "transformers, or none; {} is left out",
                     tensor.file, left_out == tensor.weights.end() ? "" : (*left_out)->name());
    if (tensor.kind != AdapterKind::kExperts || request.shares_gate_up) {
      adapter.groups.push_back(group_of(tensor.weights, tensor.kind));
      continue;
    }
    for (const Parameter* weight : tensor.weights)
      adapter.groups.push_back(group_of({weight}, tensor.kind));
  }
  return adapter;
}

std::string why_not_merged(const ModelConfig& config, const Adapter& adapter) {
  if (!config.spec.head.is_tied) return "";
  for (const AdapterGroup& group : adapter.groups)
    if (group.name == "embedding" || group.kind == AdapterKind::kHead)
      return fmt::format(
          "the embedding and the head of this {} are one tensor (tie_word_embeddings), and the "
          "adapter of the {} is none of the other",
          config.model_type, to_string(group.kind));
  return "";
}

std::string coverage_to_string(const ModelConfig& config, const Adapter& adapter) {
  struct Row {
    std::int64_t adapted = 0, all = 0, parameters = 0;
  };
  const Declarations declared = adaptable_parameters(config);
  const std::int64_t frozen = count(declare(config.spec, false)).total;
  std::array<Row, kNumAdapterKinds> rows;
  std::int64_t others = 0;
  for (const Parameter& parameter : declared.parameters) {
    const std::optional<AdapterKind> kind = adapter_kind(parameter);
    if (!kind) {
      ++others;
      continue;
    }
    Row& row = rows[static_cast<std::size_t>(*kind)];
    ++row.all;
    row.adapted += adapter.find(parameter.name()) != nullptr;
  }
  for (const AdapterGroup& group : adapter.groups)
    rows[static_cast<std::size_t>(group.kind)].parameters += group.num_elements();
  const auto total = static_cast<double>(adapter.num_elements());
  std::string text = fmt::format("{:<10} {:>7} {:>7} {:>14} {:>7}\n", "adapter", "tensors", "of",
                                 "parameters", "share");
  std::string without;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    if (row.all == 0) continue;
    text +=
        fmt::format("{:<10} {:>7} {:>7} {:>14} {:>5.1f} %\n", kKindNames[i], row.adapted, row.all,
                    row.parameters, 100.0 * static_cast<double>(row.parameters) / total);
    if (row.adapted < row.all)
      without += fmt::format("{}{} of {} {}", without.empty() ? "" : ", ", row.all - row.adapted,
                             row.all, kKindNames[i]);
  }
  text += fmt::format(
      "trained: {} parameters, {:.3g} % of the model's {}; frozen: all of these{}, and {} norms, "
      "biases and the like",
      adapter.num_elements(), 100.0 * total / static_cast<double>(frozen), frozen,
      without.empty() ? "" : fmt::format("; without an adapter: {}", without), others);
  if (const std::string reason = why_not_merged(config, adapter); !reason.empty())
    text += fmt::format("\ncannot be merged: {}", reason);
  return text;
}

}  // namespace anabatic::model
