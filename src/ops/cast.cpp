// SPDX-License-Identifier: Apache-2.0
#include "ops/cast.h"

#include <string>

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_cast(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("cast", inputs, attributes, {"dtype", "rounding"});
  const Operand x = check.floating(0, "x");
  const std::string& rounding = check.string("rounding");
  if (rounding != "even" && rounding != "half_away")
    check.fail("expected rounding 'even' or 'half_away', got '" + rounding + "'");
  const DType dtype = check.dtype("dtype");
  if (dtype == DType::kFloat16 && rounding != "even")
    check.fail("expected rounding 'even' to f16, got '" + rounding + "'");
  return {with_dtype(*x.type, dtype)};
}

ir::Gradients cast_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                            OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  return {cast_to(builder, *of_outputs[0], builder.type(node.inputs[0]).dtype)};
}

std::vector<TensorType> infer_quantize(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("quantize", inputs, attributes, {"block"});
  const Operand x = check.floating(0, "x", 2);
  check.row_major(x);
  return {in_int8(*x.type, check.positive_int("block"))};
}

std::vector<TensorType> infer_dequantize(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("dequantize", inputs, attributes, {"dtype"});
  const Operand x = check.in_int8(0, "x");
  return {typed(check.dtype("dtype"), {x.dim(0), x.dim(1)})};
}

std::vector<TensorType> infer_reload(ir::Types inputs, const spec::Attributes& attributes) {
  return {*Check("reload", inputs, attributes).floating(0, "x").type};
}

ir::Cost cost_quantize(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({3, inputs[0].num_elements()}));
}

}  // namespace

TensorType in_int8(const TensorType& x, std::int64_t block) {
  return quantized(
      typed(x.dtype, {x.shape[0], x.shape[1]}),
      int8_format(block, x.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kBFloat16));
}

const ir::OpSchema kCast{.name = "cast",
                         .min_inputs = 1,
                         .max_inputs = 1,
                         .signature = "(x any) -> any, of the attribute's dtype",
                         .infer = infer_cast,
                         .gradient = cast_gradient,
                         .cost = copy_cost};

const ir::OpSchema kQuantize{.name = "quantize",
                             .min_inputs = 1,
                             .max_inputs = 1,
                             .signature = "(x [rows,width]) -> i8_bf16_1xBLOCK[rows,width]",
                             .infer = infer_quantize,
                             .cost = cost_quantize};

const ir::OpSchema kDequantize{.name = "dequantize",
                               .min_inputs = 1,
                               .max_inputs = 1,
                               .signature =
                                   "(x i8_bf16_1xBLOCK[rows,width]) -> [rows,width], of the "
                                   "attribute's dtype",
                               .infer = infer_dequantize,
                               .cost = cost_an_element<1>};

const ir::OpSchema kReload{.name = "reload",
                           .min_inputs = 1,
                           .max_inputs = 1,
                           .signature = "(x float) -> as x",
                           .infer = infer_reload,
                           .cost = copy_cost};

}  // namespace anabatic::ops
