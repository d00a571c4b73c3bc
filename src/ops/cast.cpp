// SPDX-License-Identifier: Apache-2.0
#include "ops/cast.h"

#include <string>

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("cast", inputs, attributes, {"dtype", "rounding"});
  const Operand x = check.floating(0, "x");
  const std::string& rounding = check.string("rounding");
  if (rounding != "even" && rounding != "half_away")
    check.fail("expected rounding 'even' or 'half_away', got '" + rounding + "'");
  return {with_dtype(*x.type, check.dtype("dtype"))};
}

ir::Gradients gradient(ir::GraphBuilder& builder, const ir::Node& node,
                       OutputGradients of_outputs) {
  if (!of_outputs[0]) return {std::nullopt};
  return {cast_to(builder, *of_outputs[0], builder.type(node.inputs[0]).dtype)};
}

ir::Cost cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, 0);
}

Dim num_blocks(const Dim& width, std::int64_t block) {
  return {.bound = (width.bound + block - 1) / block};
}

std::vector<TensorType> infer_quantize(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("quantize", inputs, attributes, {"block"});
  const Operand x = check.floating(0, "x", 2);
  check.row_major(x);
  const auto [codes, scales] = code_types(*x.type, check.positive_int("block"));
  return {codes, scales};
}

std::vector<TensorType> infer_dequantize(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("dequantize", inputs, attributes, {"block", "dtype"});
  const Operand codes = check.i8(0, "codes", 2), scales = check.floating(1, "scales", 2);
  if (scales.dtype() == DType::kFloat32)
    check.fail("expected scales to be bf16, got " + to_string(*scales.type));
  check.same_dim(scales, 0, codes, 0);
  check.size(scales, 1, num_blocks(codes.dim(1), check.positive_int("block")).bound);
  return {typed(check.dtype("dtype"), {codes.dim(0), codes.dim(1)})};
}

std::vector<TensorType> infer_reload(ir::Types inputs, const spec::Attributes& attributes) {
  return {*Check("reload", inputs, attributes).floating(0, "x").type};
}

ir::Cost cost_quantize(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, product({3, inputs[0].num_elements()}));
}

ir::Cost cost_dequantize(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return elementwise_cost(inputs, outputs, 1);
}

}  // namespace

std::array<TensorType, 2> code_types(const TensorType& x, std::int64_t block) {
  const DType scales = x.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kBFloat16;
  return {typed(DType::kInt8, {x.shape[0], x.shape[1]}),
          typed(scales, {x.shape[0], num_blocks(x.shape[1], block)})};
}

const ir::OpSchema kCast{.name = "cast",
                         .min_inputs = 1,
                         .max_inputs = 1,
                         .signature = "(x any) -> any, of the attribute's dtype",
                         .infer = infer,
                         .gradient = gradient,
                         .cost = cost};

const ir::OpSchema kQuantize{.name = "quantize",
                             .min_inputs = 1,
                             .max_inputs = 1,
                             .num_outputs = 2,
                             .signature =
                                 "(x [rows,width]) -> codes i8[rows,width], "
                                 "scales bf16[rows,blocks]",
                             .infer = infer_quantize,
                             .cost = cost_quantize};

const ir::OpSchema kDequantize{.name = "dequantize",
                               .min_inputs = 2,
                               .max_inputs = 2,
                               .signature =
                                   "(codes i8[rows,width], scales bf16[rows,blocks]) -> "
                                   "[rows,width], of the attribute's dtype",
                               .infer = infer_dequantize,
                               .cost = cost_dequantize};

const ir::OpSchema kReload{.name = "reload",
                           .min_inputs = 1,
                           .max_inputs = 1,
                           .signature = "(x float) -> as x",
                           .infer = infer_reload,
                           .cost = cost};

}  // namespace anabatic::ops
