// SPDX-License-Identifier: Apache-2.0
#include "ops/weights/fake_quantize.h"

#include <fmt/core.h>

#include <string>

#include "ops/build.h"
#include "ops/check.h"
#include "ops/pack.h"
#include "tensor/panels.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_fake_quantize(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("fake_quantize", inputs, attributes, {"dtype", "grid", "layout"}, {"delay"});
  const Operand x = check.wide(0, "x");
  if (x.type->ndim() != 2 && x.type->ndim() != 3)
    check.fail("expected x to be a matrix or a stack of matrices, got " + to_string(*x.type));
  check.right_operand(x, false);
  const auto grid = weight_grid_from_string(check.string("grid"));
  if (!grid)
    check.fail("expected a grid of weights such as q8_0, got '" + check.string("grid") + "'");
  if (grid->group > 0)
    check.multiple(x, x.type->ndim() - 1, grid->group, "the group of " + to_string(*grid));
  if (check.has("delay")) {
    check.positive_int("delay");
    check.i32(1, "step", 0);
  } else if (check.num_inputs() != 1) {
    check.fail("expected the attribute 'delay' together with the input step");
  }
  const std::string& name = check.string("layout");
  const Layout layout = name == kRowMajorName ? kRowMajor : intern(name);
  if (layout != kRowMajor && !is_panels(layout))
    check.fail("expected layout 'panels', 'panels_transposed' or 'row_major', got '" + name + "'");
  TensorType type = with_dtype(*x.type, check.dtype("dtype"));
  type.layout = layout;
  return {type};
}

}  // namespace

spec::Attributes fake_quantize_attributes(const TensorType& result, const WeightGrid& grid,
                                          std::int64_t delay) {
  spec::Attributes attributes = packing_attributes(result);
  attributes["grid"] = to_string(grid);
  if (delay > 0) attributes["delay"] = delay;
  return attributes;
}

const ir::OpSchema kFakeQuantize{
    .name = "fake_quantize",
    .min_inputs = 1,
    .max_inputs = 2,
    .signature =
        "(x f32[N,K] or f32[E,N,K], step? i32[]) -> like x, of the attributes' dtype and "
        "layout",
    .infer = infer_fake_quantize,
    .cost = copy_cost};

}  // namespace anabatic::ops
