// SPDX-License-Identifier: Apache-2.0
#include "passes/derive.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/pack.h"
#include "ops/weights/fake_quantize.h"
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

}  // namespace anabatic::passes
