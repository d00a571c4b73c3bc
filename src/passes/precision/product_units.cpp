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

const Unit* unit_of(const ir::Graph& graph, const ir::Node& product, const Units& units) {
  if (units.empty()) return nullptr;
  const std::string name = product_name(graph, product);
  const Unit* longest = nullptr;
  for (const Unit& unit : units)
    if ((is_part_of(name, unit.first) || unit.first == text(product.tag.segment)) &&
        (longest == nullptr || unit.first.size() > longest->first.size()))
      longest = &unit;
  return longest;
}

void require_units(const ir::Graph& graph, const Units& units) {
  if (units.empty()) return;
  std::set<std::string> names;
  for (const ir::Node& node : graph.nodes)
    if (is_plain_product(node)) add_names(graph, node, names);
  for (const Unit& unit : units) {
    const Units alone{unit};
    if (std::ranges::any_of(graph.nodes, [&](const ir::Node& node) {
          return is_plain_product(node) && unit_of(graph, node, alone) != nullptr;
        }))
      continue;
    const auto nearest =
        nearest_word(unit.first, std::vector<std::string>(names.begin(), names.end()));
    throw InvalidArgument(
        fmt::format("[precision] precision.keep: expected a unit with products, got '{}'{}; there "
                    "are {}, and parts of these names",
                    unit.first, nearest ? fmt::format("; did you mean '{}'?", *nearest) : "",
                    fmt::join(names, ", ")));
  }
}

}  // namespace anabatic::passes
