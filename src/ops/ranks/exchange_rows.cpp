// SPDX-License-Identifier: Apache-2.0
#include "ops/ranks/exchange_rows.h"

#include <algorithm>

#include "base/error.h"
#include "ops/build.h"
#include "ops/check.h"
#include "ops/ranks/exchange.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_exchange_rows(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("exchange_rows", inputs, attributes, {"group", "rows"}, {"top_k"});
  check_group(check);
  const Operand x = check.floating_or_i32(0, "x", 2), send = check.i32(1, "send_counts", 1),
                receive = check.i32(2, "receive_counts", 1);
  check.row_major(x);
  check.same_dim(send, 0, receive, 0);
  if (check.num_inputs() == 4) {
    check.i32(3, "row_map", 1);
    check.positive_int("top_k");
  } else if (check.has("top_k")) {
    check.fail("expected no 'top_k' without a row_map");
  }
  return {typed(x.dtype(), {check.non_negative_int("rows"), x.dim(1)})};
}

// The gradients go back the way that the rows came.
ir::Gradients exchange_rows_gradient(ir::GraphBuilder& builder, const ir::Node& node,
                                     OutputGradients of_outputs) {
  if (!of_outputs[0]) return ir::Gradients(node.inputs.size());
  ANABATIC_REQUIRE(node.inputs.size() == 3,
                   "[exchange_rows] expected no row_map in a graph to differentiate");
  spec::Attributes attributes = node.attributes;
  attributes["rows"] = builder.type(node.inputs[0]).dim(0);
  return {builder.add1("exchange_rows", {*of_outputs[0], node.inputs[2], node.inputs[1]},
                       std::move(attributes)),
          std::nullopt, std::nullopt};
}

// It counts the rows that fit on both sides: no type knows the counts.
ir::Cost exchange_rows_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  const std::int64_t bytes = std::min(
      inputs.size() == 4 ? outputs[0].num_bytes() : inputs[0].num_bytes(), outputs[0].num_bytes());
  return {.flops = 0, .bytes_read = bytes, .bytes_written = bytes};
}

}  // namespace

const ir::OpSchema kExchangeRows{
    .name = "exchange_rows",
    .min_inputs = 3,
    .max_inputs = 4,
    .signature =
        "(x [N,W], send_counts i32[G], receive_counts i32[G], row_map? i32[S]) -> [rows,W] like x",
    .infer = infer_exchange_rows,
    .gradient = exchange_rows_gradient,
    .cost = exchange_rows_cost};

}  // namespace anabatic::ops
