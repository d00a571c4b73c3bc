// SPDX-License-Identifier: Apache-2.0
#include "ops/route_sort.h"

#include "base/error.h"
#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

constexpr std::int64_t kMaxExperts = 0x7FFFFFFF;  // experts are i32

std::vector<TensorType> infer_route_sort(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("route_sort", inputs, attributes, {"num_experts"});
  const Operand experts = check.i32(0, "experts", 2);
  const std::int64_t num_experts = check.positive_int("num_experts");
  if (num_experts > kMaxExperts)
    check.fail(fmt::format("expected at most {} experts, got {}", kMaxExperts, num_experts));
  const std::int64_t rows = product({experts.size(0), experts.size(1)});
  return {typed(DType::kInt32, {rows}), typed(DType::kInt32, {rows}),
          typed(DType::kInt32, {num_experts + 1})};
}

}  // namespace

const ir::OpSchema kRouteSort{
    .name = "route_sort",
    .min_inputs = 1,
    .max_inputs = 1,
    .num_outputs = 3,
    .signature = "(experts i32[T,k]) -> row_map i32[R], slots i32[R], offsets i32[E+1]",
    .infer = infer_route_sort,
    .cost = copy_cost};

}  // namespace anabatic::ops
