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

}  // namespace

bool is_plain_product(const ir::Node& node) {
  const spec::ProductForm* form = ir::product_form(node);
  return form != nullptr && form->is_plain() && form->role == spec::ProductRole::kForward;
}

std::string product_name(const ir::Graph& graph, const ir::Node& product) {
  constexpr std::string_view kWeight = ".weight";
  for (const ir::State& state : graph.states) {
    if (state.before != product.inputs[1]) continue;
    std::string_view name = text(state.owner != Name{} ? state.owner : state.name);
    if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
    return std::string(name);
  }
  return {};
}

bool is_in_unit(const ir::Graph& graph, const ir::Node& product, std::string_view unit) {
  return is_part_of(product_name(graph, product), unit) || unit == text(product.tag.segment);
}

const Unit* unit_of(const ir::Graph& graph, const ir::Node& product, const Units& units) {
  const Unit* longest = nullptr;
  for (const Unit& unit : units)
    if (is_in_unit(graph, product, unit.first) &&
        (longest == nullptr || unit.first.size() > longest->first.size()))
      longest = &unit;
  return longest;
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
