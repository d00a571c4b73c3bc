// SPDX-License-Identifier: Apache-2.0
#include "passes/sparsity/mask_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "ir/op_schema.h"
#include "passes/precision/product_units.h"

namespace anabatic::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::State;
using ir::StateRole;
using spec::SparseUnits;
using spec::SparsityPattern;

constexpr std::string_view kUnitsKey = "sparsity.units";
constexpr std::int64_t kGroupOfFour = 4;

class Masker {
 public:
  Masker(Graph& graph, const PassContext& context)
      : graph_(graph),
        builder_(graph, context.find_op),
        options_(context.options.sparsity),
        explanation_(context.options.explanation) {}

  bool run() {
    for (const SparseUnits& entry : options_.entries) {
      require_units(graph_, entry.units, kUnitsKey, is_outside_router);
      choose(entry);
    }
    for (const auto& [parameter, entry] : chosen_) require_form(parameter, *entry);
    if (!problems_.empty())
      throw InvalidArgument(fmt::format("[mask_weights] {}", fmt::join(problems_, "\n  ")));
    bool changed = false;
    for (const auto& [parameter, entry] : chosen_) changed |= add_mask(parameter, *entry);
    return changed;
  }

 private:
  void choose(const SparseUnits& entry) {
    for (const Node& node : graph_.nodes) {
      if (!is_plain_product(node) || !is_outside_router(node)) continue;
      const bool is_wanted = std::ranges::any_of(
          entry.units, [&](const std::string& unit) { return is_in_unit(graph_, node, unit); });
      const State* weight = is_wanted ? weight_of(graph_, node) : nullptr;
      if (weight == nullptr || !weight->is_trainable) continue;
      const auto [place, is_new] = chosen_.emplace(weight->name, &entry);
      if (!is_new && place->second != &entry)
        problems_.push_back(
            fmt::format("{}: expected each weight in one entry, got '{}' in {} ({}) and in {} ({})",
                        kUnitsKey, text(weight->name), fmt::join(place->second->units, ", "),
                        to_string(place->second->pattern), fmt::join(entry.units, ", "),
                        to_string(entry.pattern)));
    }
  }

  void require_form(Name parameter, const SparseUnits& entry) {
    const State& weight = *graph_.find_state(parameter);
    if (entry.pattern == SparsityPattern::kUnstructured && weight.grid)
      problems_.push_back(fmt::format(
          "sparsity.pattern: expected block32, block16 or 2:4 for '{}', which quantization has on "
          "the grid {}, got unstructured",
          text(parameter), to_string(*weight.grid)));
    if (entry.pattern != SparsityPattern::kTwoOfFour) return;
    const TensorType& type = graph_.value(weight.before).type;
    const auto require = [&](std::int64_t count, const char* what) {
      if (count % kGroupOfFour != 0)
        problems_.push_back(fmt::format(
            "sparsity.pattern: expected {} of a multiple of 4 for 2:4{}, got {} in '{}'; block16, "
            "block32 and unstructured take any",
            what, entry.is_transposable ? " that is transposable" : "", count, text(parameter)));
    };
    require(type.dim(-1), "rows");
    if (entry.is_transposable) require(type.dim(-2), "columns");
  }

  bool add_mask(Name parameter, const SparseUnits& entry) {
    if (graph_.find_state(StateRole::kMask, parameter) != nullptr) return false;
    const TensorType type = graph_.value(graph_.find_state(parameter)->before).type;
    builder_.state_of(parameter, StateRole::kMask, spec::mask_type(entry.pattern, type));
    graph_.states.back().pattern = entry.pattern;
    graph_.states.back().entry = static_cast<std::int32_t>(&entry - options_.entries.data());
    if (explanation_ != nullptr)
      explanation_->push_back(fmt::format("{}: {} mask, density {}", text(parameter),
                                          to_string(entry.pattern), entry.density));
    return true;
  }

  Graph& graph_;
  ir::GraphBuilder builder_;
  const spec::SparsityOptions& options_;
  std::vector<std::string>* explanation_;
  std::map<Name, const SparseUnits*> chosen_;  // by parameter
  std::vector<std::string> problems_;
};

bool mask_weights(Graph& graph, const PassContext& context) {
  return context.options.with_update && !context.options.sparsity.entries.empty() &&
         Masker(graph, context).run();
}

}  // namespace

const Pass kMaskWeights{
    .name = "mask_weights", .needs = {"precision_chosen"}, .required = true, .run = mask_weights};

}  // namespace anabatic::passes
