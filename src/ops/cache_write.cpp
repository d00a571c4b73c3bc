// SPDX-License-Identifier: Apache-2.0
#include "ops/cache_write.h"

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_cache_write(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("cache_write", inputs, attributes);
  const Operand cache = check.floating(0, "cache", 2), rows = check.floating(1, "rows", 2),
                places = check.i32(2, "places", 1);
  check.same_dtype(cache, rows);
  check.same_dim(cache, 1, rows, 1);
  check.same_dim(places, 0, rows, 0);
  return {*cache.type};
}

ir::Cost cache_write_cost(ir::Types inputs, ir::Types, const spec::Attributes&) {
  return {.flops = 0, .bytes_read = inputs[1].num_bytes(), .bytes_written = inputs[1].num_bytes()};
}

}  // namespace

const ir::OpSchema kCacheWrite{
    .name = "cache_write",
    .min_inputs = 3,
    .max_inputs = 3,
    .signature = "(cache [C,W], rows [T,W], places i32[T]) -> cache like cache",
    .infer = infer_cache_write,
    .cost = cache_write_cost,
    .must_alias = ir::always<0>};

}  // namespace anabatic::ops
