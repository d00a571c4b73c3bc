// SPDX-License-Identifier: Apache-2.0
#include "ops/ranks/dispatch_map.h"

#include <fmt/core.h>

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_dispatch_map(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("dispatch_map", inputs, attributes, {"member", "rows", "expected"});
  const Operand routes = check.i32(0, "routes", 2);
  const std::int64_t members = routes.size(0), num_experts = routes.size(1) - 1,
                     member = check.non_negative_int("member"),
                     rows = check.non_negative_int("rows");
  check.non_negative_int("expected");
  if (members < 1 || num_experts < 1 || num_experts % members != 0)
    check.fail(fmt::format("expected experts that divide among the ranks, got {}",
                           to_string(*routes.type)));
  if (member >= members)
    check.fail(fmt::format("expected a member below {}, got {}", members, member));
  return {typed(DType::kInt32, {rows}),
          typed(DType::kInt32, {rows}),
          typed(DType::kInt32, {num_experts / members + 1}),
          typed(DType::kInt32, {members}),
          typed(DType::kInt32, {members}),
          typed(DType::kInt32, {1})};
}

}  // namespace

const ir::OpSchema kDispatchMap{
    .name = "dispatch_map",
    .min_inputs = 1,
    .max_inputs = 1,
    .num_outputs = 6,
    .signature =
        "(routes i32[G,E+1]) -> row_map i32[rows], slots i32[rows], offsets i32[E/G+1], "
        "send_counts i32[G], receive_counts i32[G], needed i32[1]",
    .infer = infer_dispatch_map,
    .cost = copy_cost};

}  // namespace anabatic::ops
