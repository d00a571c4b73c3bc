// SPDX-License-Identifier: Apache-2.0
#include "ops/sum_squares.h"

#include <fmt/core.h>

#include "ops/build.h"
#include "ops/check.h"
#include "spec/sparsity.h"

namespace anabatic::ops {
namespace {

std::vector<TensorType> infer_sum_squares(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("sum_squares", inputs, attributes, {}, {"kept", "mask"});
  check.floating(0, "x");
  const auto pattern = spec::mask_of(attributes);
  if (pattern.has_value() != (check.num_inputs() == 2))
    check.fail(pattern ? "expected a mask as the second input with 'mask', got none"
                       : "expected 'mask' with a second input, got none");
  if (pattern) {
    const TensorType wanted = spec::mask_type(*pattern, *check.wide(0, "x").type);
    if (inputs[1] != wanted)
      check.fail(
          fmt::format("expected mask to be {}, got {}", to_string(wanted), to_string(inputs[1])));
  }
  return {typed(DType::kFloat64, {})};
}

std::vector<TensorType> infer_parts(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("sum_squares_of_parts", inputs, attributes,
                    {"columns", "column", "parts", "part", "count"});
  for (int i = 0; i < check.num_inputs(); ++i) check.floating(i, "gradient");
  const auto place = [&](std::string_view of, std::string_view among) {
    const std::int64_t number = check.positive_int(among), at = check.non_negative_int(of),
                       count = check.positive_int("count");
    if (at + count > number)
      check.fail(
          fmt::format("expected {} and {} after it within {}, got {}", of, count - 1, number, at));
    return number;
  };
  place("part", "parts");
  return {typed(DType::kFloat64, {std::ssize(inputs), place("column", "columns")})};
}

// Some parts of each are read.
ir::Cost cost_of_parts(ir::Types inputs, ir::Types outputs, const spec::Attributes& attributes) {
  const double share = static_cast<double>(spec::get_int(attributes, "count")) /
                       static_cast<double>(spec::get_int(attributes, "parts"));
  ir::Cost result{.bytes_written = outputs[0].num_bytes()};
  for (const TensorType& input : inputs) {
    result.flops +=
        static_cast<std::int64_t>(2 * share * static_cast<double>(input.num_elements()));
    result.bytes_read += static_cast<std::int64_t>(share * static_cast<double>(input.num_bytes()));
  }
  return result;
}

// With blocks that are kept, no others are read.
ir::Cost sum_squares_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes& attributes) {
  const ir::Cost whole = streaming_cost(inputs, outputs, product({inputs[0].num_elements(), 2}));
  if (spec::kept_of(attributes) == 0) return whole;
  const double share = spec::density_of(attributes, inputs[0]);
  const auto part = [&](std::int64_t of) {
    return static_cast<std::int64_t>(share * static_cast<double>(of));
  };
  return {.flops = part(whole.flops),
          .bytes_read = part(whole.bytes_read),
          .bytes_written = whole.bytes_written};
}

}  // namespace

const ir::OpSchema kSumSquares{.name = "sum_squares",
                               .min_inputs = 1,
                               .max_inputs = 2,
                               .signature = "(x any, mask? u8) -> f64[]",
                               .infer = infer_sum_squares,
                               .cost = sum_squares_cost};

const ir::OpSchema kSumSquaresOfParts{.name = "sum_squares_of_parts",
                                      .min_inputs = 1,
                                      .max_inputs = -1,
                                      .signature = "(g0 any, g1 any, ...) -> f64[n,columns]",
                                      .infer = infer_parts,
                                      .cost = cost_of_parts};

}  // namespace anabatic::ops
