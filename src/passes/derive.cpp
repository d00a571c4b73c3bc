// SPDX-License-Identifier: Apache-2.0
#include "passes/derive.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/pack.h"
#include "ops/weights/fake_quantize.h"
#include "spec/sparse_layout.h"
#include "tensor/panels.h"

namespace anabatic::passes {

ir::ValueId add_derivation(ir::GraphBuilder& builder, ir::ValueId primary,
                           const TensorType& derived) {
  const TensorType type = derived, source = builder.type(primary);
  ANABATIC_CHECK((source.layout == kRowMajor || source.layout == panels_layout(false)) &&
                     source.shape == type.shape &&
                     (type.layout == kRowMajor || is_panels(type.layout)),
                 "[derive] no op makes {} from {}", to_string(type), to_string(source));
  if (type.layout != kRowMajor || source.layout != kRowMajor)
    return builder.add1("pack", {primary}, ops::packing_attributes(type));
  // bf16 copies are the upper 16 bits that split_parameters keeps.
  return builder.add1(
      "cast", {primary},
      {{"dtype", std::string(to_string(type.dtype))},
       {"rounding", std::string(type.dtype == DType::kFloat16 ? "even" : "half_away")}});
}

ir::ValueId add_derivation(ir::GraphBuilder& builder, ir::ValueId primary, const ir::State& derived,
                           const GridRounding& rounding) {
  const TensorType type = builder.type(derived.before);
  if (!derived.grid) return add_derivation(builder, primary, type);
  const auto rounded_to = [&](const TensorType& result) {
    std::vector<ir::ValueId> inputs{primary};
    if (rounding.delay > 0) inputs.push_back(rounding.step);
    return builder.add1(ops::kFakeQuantize.name, std::move(inputs),
                        ops::fake_quantize_attributes(result, *derived.grid, rounding.delay));
  };
  // Int8 products have a scale of their own, of what they multiply: the values of the grid.
  if (!is_int8_panels(type)) return rounded_to(type);
  return add_derivation(builder, rounded_to(tensor_type(DType::kFloat32, type.shape)), type);
}

bool is_sparse_index(const ir::State& state) {
  return state.role == ir::StateRole::kSparseIndex ||
         state.role == ir::StateRole::kSparseIndexTransposed;
}
bool is_sparse_values(const ir::State& state) {
  return state.role == ir::StateRole::kSparseValues ||
         state.role == ir::StateRole::kSparseValuesTransposed;
}

ir::ValueId add_sparse_derivation(ir::GraphBuilder& builder, ir::ValueId primary,
                                  const ir::State& derived) {
  const Name owner = derived.owner;
  const bool is_index = is_sparse_index(derived);
  const bool transposed = derived.role == ir::StateRole::kSparseIndexTransposed ||
                          derived.role == ir::StateRole::kSparseValuesTransposed;
  const ir::State* of =
      builder.graph().find_state(is_index     ? ir::StateRole::kMask
                                 : transposed ? ir::StateRole::kSparseIndexTransposed
                                              : ir::StateRole::kSparseIndex,
                                 owner);
  ANABATIC_CHECK(of != nullptr, "[derive] nothing to make '{}' from", text(derived.name));
  const spec::SparsityPattern pattern = *derived.pattern;
  const ir::ValueId from = of->after;
  const TensorType type = builder.type(derived.before), weight = builder.type(primary);
  spec::Attributes attributes{{"pattern", std::string(to_string(pattern))},
                              {"transposed", transposed}};
  if (!is_index) {
    attributes["dtype"] = std::string(to_string(type.dtype));
    attributes["kept"] = type.dim(-2);
    return builder.add1("pack_sparse", {primary, from}, std::move(attributes));
  }
  const spec::SparseLayout layout = spec::sparse_layout_by_index(
      pattern, weight.dim(transposed ? -1 : -2), weight.dim(transposed ? -2 : -1), type.dim(-1));
  attributes["rows"] = weight.dim(-2);
  attributes["columns"] = weight.dim(-1);
  attributes["kept"] = layout.kept;
  return builder.add1("sparse_index", {from}, std::move(attributes));
}

}  // namespace anabatic::passes
