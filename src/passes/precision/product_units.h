// SPDX-License-Identifier: Apache-2.0
// Units of weights, as config keys name them, for the passes that choose the precision of products.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "spec/training.h"

namespace anabatic::passes {

using Units = decltype(spec::ProductOptions::keep);
using Unit = Units::value_type;

// Whether it is a forward product of one weight, with nothing after it.
bool is_plain_product(const ir::Node& node);

// The dotted name of the weight that such a product reads, without ".weight"; empty where it is no
// state. Linear in states.
std::string product_name(const ir::Graph& graph, const ir::Node& product);

// The longest unit that holds the product; null where none does.
const Unit* unit_of(const ir::Graph& graph, const ir::Node& product, const Units& units);

// Whether the unit holds the product.
bool is_in_unit(const ir::Graph& graph, const ir::Node& product, std::string_view unit);

// InvalidArgument for a unit of `key` that holds no product that `counts`, with the nearest one and
// all that there are.
void require_units(const ir::Graph& graph, const std::vector<std::string>& units,
                   std::string_view key,
                   const std::function<bool(const ir::Node& product)>& counts = is_plain_product);

}  // namespace anabatic::passes
