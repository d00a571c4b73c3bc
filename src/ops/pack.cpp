// SPDX-License-Identifier: Apache-2.0
#include "ops/pack.h"

#include <fmt/core.h>

#include <string>

#include "ops/build.h"
#include "ops/check.h"
#include "tensor/panels.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_pack(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("pack", inputs, attributes, {"dtype", "layout"}, {"first_row", "rows"});
  const Operand x = check.floating(0, "x");
  if (x.type->ndim() != 2 && x.type->ndim() != 3)
    check.fail("expected x to be a matrix or a stack of matrices, got " + to_string(*x.type));
  check.right_operand(x, false);
  const std::string& name = check.string("layout");
  const Layout layout = name == kRowMajorName ? kRowMajor : intern(name);
  if (layout != kRowMajor && !is_panels(layout))
    check.fail("expected layout 'panels', 'panels_transposed' or 'row_major', got '" + name + "'");
  TensorType type = with_dtype(*x.type, check.dtype("dtype"));
  type.layout = layout;
  if (!check.has("rows") && !check.has("first_row")) return {type};
  check.row_major(x);
  if (layout == kRowMajor) check.fail("expected a packed layout for rows of each matrix");
  const std::int64_t first = check.non_negative_int("first_row"), rows = check.positive_int("rows");
  std::int64_t& all = type.shape[type.shape.size() - 2];
  if (first > all || rows > all - first)
    check.fail(fmt::format("expected rows within {}, got {} from row {} on", to_string(*x.type),
                           rows, first));
  all = rows;
  return {type};
}

}  // namespace

const ir::OpSchema kPack{
    .name = "pack",
    .min_inputs = 1,
    .max_inputs = 1,
    .signature = "(x [N,K] or [E,N,K]) -> like x, of the attributes' dtype and layout",
    .infer = infer_pack,
    .cost = copy_cost};

}  // namespace anabatic::ops
