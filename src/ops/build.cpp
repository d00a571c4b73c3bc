// SPDX-License-Identifier: Apache-2.0
#include "ops/build.h"

#include <algorithm>

#include "base/error.h"

namespace anabatic::ops {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 62;

std::int64_t total_bytes(ir::Types types) {
  std::int64_t bytes = 0;
  for (const TensorType& type : types) {
    const std::int64_t elements =
        product({elements_type(type).num_elements(), size_bytes(type.dtype)});
    const std::int64_t scales = type.is_quantized() ? type.num_bytes() - scales_offset(type) : 0;
    bytes = std::min(kMost, bytes + std::min(kMost, elements) + scales);
  }
  return bytes;
}

}  // namespace

ir::ValueId cast_to(ir::GraphBuilder& builder, ir::ValueId value, DType dtype) {
  if (builder.type(value).dtype == dtype) return value;
  return builder.add1(
      "cast", {value},
      {{"dtype", std::string(to_string(dtype))}, {"rounding", std::string("even")}});
}

void require_no_gradient(const ir::Node& node, OutputGradients of_outputs, int output,
                         std::string_view name) {
  ANABATIC_REQUIRE(!of_outputs[static_cast<std::size_t>(output)],
                   "[{}] expected no gradient for its output '{}', got one; that output is not "
                   "differentiable",
                   node.op->name, name);
}

std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) {
    if (factor <= 0) return 0;
    result = result > kMost / factor ? kMost : result * factor;
  }
  return result;
}

ir::Cost streaming_cost(ir::Types inputs, ir::Types outputs, std::int64_t flops) {
  return {.flops = flops, .bytes_read = total_bytes(inputs), .bytes_written = total_bytes(outputs)};
}

ir::Cost elementwise_cost(ir::Types inputs, ir::Types outputs, std::int64_t flops_per_element) {
  return streaming_cost(inputs, outputs, product({outputs[0].num_elements(), flops_per_element}));
}

ir::Cost copy_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return streaming_cost(inputs, outputs, 0);
}

ir::Cost gather_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return {.flops = 0,
          .bytes_read = outputs[0].num_bytes() + inputs[1].num_bytes(),
          .bytes_written = outputs[0].num_bytes()};
}

std::int64_t most_slices_of_experts(ir::Types inputs, const spec::Attributes&) {
  return inputs[1].dim(0);
}

}  // namespace anabatic::ops
