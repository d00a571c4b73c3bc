// SPDX-License-Identifier: Apache-2.0
// Units of weights, as config keys name them, for the passes that choose the precision of products.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "spec/product.h"
#include "spec/training.h"

namespace anabatic::passes {

using Units = decltype(spec::ProductOptions::keep);
using Unit = Units::value_type;

// Scales and second values would cost more than shorter products gain in int8.
inline constexpr std::int64_t kLeastInt8Depth = 32;

// Whether it is a forward product of one weight, with nothing after it.
bool is_plain_product(const ir::Node& node);

// Whether it lies outside of the router, whose logits choose experts: grids and masks leave its
// weights whole.
bool is_outside_router(const ir::Node& product);

// The parameter that such a product reads, itself or a state of it; null where it reads another
// value. Linear in states.
const ir::State* weight_of(const ir::Graph& graph, const ir::Node& product);

// By which units know a product: the name of its weight, and the segment that it is in.
struct ProductPlace {
  std::string name;
  std::string_view segment;
};

// The dotted name of a parameter without ".weight".
std::string unit_name(Name parameter);

// The unit_name() of the weight that such a product reads; empty where it is no state. Linear in
// states.
std::string product_name(const ir::Graph& graph, const ir::Node& product);
ProductPlace place_of(const ir::Graph& graph, const ir::Node& product);

// The longest unit that holds the product; null where none does.
const Unit* unit_of(const ir::Graph& graph, const ir::Node& product, const Units& units);
const Unit* unit_of(const ProductPlace& product, const Units& units);

// Whether the unit holds the product.
bool is_in_unit(const ir::Graph& graph, const ir::Node& product, std::string_view unit);
bool is_in_unit(const ProductPlace& place, std::string_view unit);

const std::string* unit_of(const ProductPlace& product, const std::vector<std::string>& units);

// InvalidArgument for a unit without products of ProductOptions, and for a product that `keep` has
// in int8 although it is critical.
void require_units(const ir::Graph& graph, const spec::ProductOptions& options);

// "forward", "input gradient" or "weight gradient".
std::string_view to_string(spec::ProductRole role);

// The precision that products of the weight of this name were raised to in a role
// (ProductOptions::raised).
std::optional<spec::Precision> raised_precision(std::string_view weight, spec::ProductRole role,
                                                const spec::ProductOptions& options);
inline constexpr std::string_view kRaised = "error was above precision.adaptive.error";

// The key and unit that keep a product out of int8: "precision.keep has attention". Empty where
// nothing does. It knows nothing of raised_precision().
std::string int8_refusal_of_units(const ProductPlace& product, const spec::ProductOptions& options);

// Whether matrices of the graph are frozen. Those that are trained are an adapter's then.
bool trains_adapter(const ir::Graph& graph);

inline constexpr std::string_view kOfAdapter = "it is of an adapter";

// Why a weight has no int8 products, whatever its units; empty where it may have some.
std::string int8_refusal_of_weight(const ir::Graph& graph, const ir::State& parameter);

// InvalidArgument for a unit of `key` that holds no product that `counts`, with the nearest one and
// all that there are.
void require_units(const ir::Graph& graph, const std::vector<std::string>& units,
                   std::string_view key,
                   const std::function<bool(const ir::Node& product)>& counts = is_plain_product);

}  // namespace anabatic::passes
