// SPDX-License-Identifier: Apache-2.0
#include "passes/precision/product_units.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "ir/op_schema.h"

namespace anabatic::passes {
namespace {

// Whether `part` is whole words of the dotted name.
bool is_part_of(std::string_view name, std::string_view part) {
  return fmt::format(".{}.", name).find(fmt::format(".{}.", part)) != std::string::npos;
}

// "layers.N.attention.q" of any layer, then the segment.
void add_names(const ir::Graph& graph, const ir::Node& product, std::set<std::string>& names) {
  std::string name;
  bool is_number = false;
  for (const char c : product_name(graph, product)) {
    const bool is_digit =
        std::isdigit(static_cast<unsigned char>(c)) != 0 && (is_number || name.ends_with('.'));
    if (!is_digit) name += c;
    if (is_digit && !is_number) name += 'N';
    is_number = is_digit;
  }
  names.insert(name);
  if (product.tag.segment != Name{}) names.emplace(text(product.tag.segment));
}

template <class Unit, class NameOf>
const Unit* longest_of(const ProductPlace& product, const std::vector<Unit>& units,
                       NameOf&& name_of) {
  const Unit* longest = nullptr;
  for (const Unit& unit : units)
    if (is_in_unit(product, name_of(unit)) &&
        (longest == nullptr || name_of(unit).size() > name_of(*longest).size()))
      longest = &unit;
  return longest;
}

}  // namespace

bool is_plain_product(const ir::Node& node) {
  const spec::ProductForm* form = ir::product_form(node);
  return form != nullptr && form->is_plain() && form->role == spec::ProductRole::kForward;
}

bool is_outside_router(const ir::Node& product) { return product.tag.segment != intern("router"); }

const ir::State* weight_of(const ir::Graph& graph, const ir::Node& product) {
  const auto found = std::ranges::find(graph.states, product.inputs[1], &ir::State::before);
  if (found == graph.states.end()) return nullptr;
  return found->owner != Name{} ? graph.find_state(found->owner) : &*found;
}

std::string unit_name(Name parameter) {
  constexpr std::string_view kWeight = ".weight";
  std::string_view name = text(parameter);
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  return std::string(name);
}

std::string product_name(const ir::Graph& graph, const ir::Node& product) {
  for (const ir::State& state : graph.states)
    if (state.before == product.inputs[1])
      return unit_name(state.owner != Name{} ? state.owner : state.name);
  return {};
}

ProductPlace place_of(const ir::Graph& graph, const ir::Node& product) {
  return {product_name(graph, product), text(product.tag.segment)};
}

bool is_in_unit(const ProductPlace& place, std::string_view unit) {
  return is_part_of(place.name, unit) || unit == place.segment;
}

bool is_in_unit(const ir::Graph& graph, const ir::Node& product, std::string_view unit) {
  return is_in_unit(place_of(graph, product), unit);
}

const Unit* unit_of(const ProductPlace& product, const Units& units) {
  return longest_of(product, units,
                    [](const Unit& unit) -> const std::string& { return unit.first; });
}

const Unit* unit_of(const ir::Graph& graph, const ir::Node& product, const Units& units) {
  return unit_of(place_of(graph, product), units);
}

const std::string* unit_of(const ProductPlace& product, const std::vector<std::string>& units) {
  return longest_of(product, units,
                    [](const std::string& unit) -> const std::string& { return unit; });
}

void require_units(const ir::Graph& graph, const spec::ProductOptions& options) {
  std::vector<std::string> kept;
  for (const Unit& unit : options.keep) kept.push_back(unit.first);
  require_units(graph, kept, "precision.keep");
  require_units(graph, options.critical, "precision.critical");
  for (const ir::Node& node : graph.nodes) {
    if (!is_plain_product(node)) continue;
    const ProductPlace place = place_of(graph, node);
    const Unit* keep = unit_of(place, options.keep);
    const std::string* critical = unit_of(place, options.critical);
    ANABATIC_REQUIRE(
        keep == nullptr || keep->second != spec::Precision::kInt8 || critical == nullptr,
        "[precision] precision.keep: expected bf16 or fp32 for '{}', got int8: "
        "precision.critical has '{}', and both hold {}",
        keep->first, *critical, place.name);
  }
}

std::string_view to_string(spec::ProductRole role) {
  switch (role) {
    case spec::ProductRole::kForward:
      return "forward";
    case spec::ProductRole::kInputGradient:
      return "input gradient";
    case spec::ProductRole::kWeightGradient:
      break;
  }
  return "weight gradient";
}

std::optional<spec::Precision> raised_precision(std::string_view weight, spec::ProductRole role,
                                                const spec::ProductOptions& options) {
  for (const spec::RaisedProduct& raised : options.raised)
    if (raised.weight == weight && raised.role == role) return raised.precision;
  return std::nullopt;
}

std::string int8_refusal_of_units(const ProductPlace& product,
                                  const spec::ProductOptions& options) {
  const Unit* keep = unit_of(product, options.keep);
  if (keep != nullptr && keep->second != spec::Precision::kInt8)
    return fmt::format("precision.keep has {}", keep->first);
  const std::string* critical = unit_of(product, options.critical);
  return critical != nullptr ? fmt::format("precision.critical has {}", *critical) : "";
}

bool trains_adapter(const ir::Graph& graph) {
  return std::ranges::any_of(graph.states, [&](const ir::State& state) {
    return state.kind() == ir::StateKind::kParameter && !state.is_trainable &&
           graph.value(state.before).type.ndim() >= 2;
  });
}

std::string int8_refusal_of_weight(const ir::Graph& graph, const ir::State& parameter) {
  const TensorType& type = graph.value(parameter.before).type;
  if (type.is_quantized())
    return fmt::format("lora.base keeps it in {}", is_mxfp4(type) ? "mxfp4" : "int8");
  if (parameter.is_trainable && trains_adapter(graph)) return std::string(kOfAdapter);
  const std::int64_t depth = std::min(type.dim(-2), type.dim(-1));
  return depth < kLeastInt8Depth ? fmt::format("a depth of {} is below {}", depth, kLeastInt8Depth)
                                 : "";
}

void require_units(const ir::Graph& graph, const std::vector<std::string>& units,
                   std::string_view key,
                   const std::function<bool(const ir::Node& product)>& counts) {
  if (units.empty()) return;
  std::set<std::string> names;
  std::vector<const ir::Node*> products;
  for (const ir::Node& node : graph.nodes)
    if (is_plain_product(node) && counts(node)) {
      products.push_back(&node);
      add_names(graph, node, names);
    }
  for (const std::string& unit : units) {
    if (std::ranges::any_of(products,
                            [&](const ir::Node* node) { return is_in_unit(graph, *node, unit); }))
      continue;
    const auto nearest = nearest_word(unit, std::vector<std::string>(names.begin(), names.end()));
    throw InvalidArgument(
        fmt::format("[precision] {}: expected a unit with products, got '{}'{}; there are {}, and "
                    "parts of these names",
                    key, unit, nearest ? fmt::format("; did you mean '{}'?", *nearest) : "",
                    fmt::join(names, ", ")));
  }
}

}  // namespace anabatic::passes
