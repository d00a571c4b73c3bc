// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/access.h"
#include "kernels/ref/rows.h"

namespace anabatic::kernels::ref {
namespace {

std::int64_t checked_expert(const TensorView& experts, std::int64_t slot,
                            std::int64_t num_experts) {
  const std::int64_t expert = load_index(experts, slot);
  ANABATIC_REQUIRE(0 <= expert && expert < num_experts,
                   "[expert_bias] expected experts in [0, {}), got {}", num_experts, expert);
  return expert;
}

}  // namespace

void expert_bias(const Arguments& args) {
  const TensorView &x = args.inputs[0], &bias = args.inputs[1], &weights = args.inputs[2],
                   &experts = args.inputs[3];
  const std::int64_t width = columns(x), top_k = columns(weights);
  for (std::int64_t i = 0; i < size(x); ++i) {
    double sum = load(x, i);
    for (std::int64_t slot = i / width * top_k; slot < (i / width + 1) * top_k; ++slot)
      sum += load(weights, slot) *
             load(bias, checked_expert(experts, slot, rows(bias)) * width + i % width);
    store(args.outputs[0], i, sum);
  }
}

void expert_bias_router_gradient(const Arguments& args) {
  const TensorView &dy = args.inputs[0], &bias = args.inputs[1], &experts = args.inputs[2];
  const std::int64_t width = columns(dy), top_k = columns(experts);
  for (std::int64_t slot = 0; slot < size(experts); ++slot) {
    const std::int64_t row = checked_expert(experts, slot, rows(bias)) * width;
    double sum = 0;
    for (std::int64_t n = 0; n < width; ++n)
      sum += load(dy, slot / top_k * width + n) * load(bias, row + n);
    store(args.outputs[0], slot, sum);
  }
}

void expert_bias_weight_gradient(const Arguments& args) {
  const TensorView &dy = args.inputs[0], &weights = args.inputs[1], &experts = args.inputs[2];
  const std::int64_t width = columns(dy), top_k = columns(experts),
                     num_experts = rows(args.outputs[0]);
  for (std::int64_t i = 0; i < num_experts * width; ++i) {
    double sum = 0;
    for (std::int64_t slot = 0; slot < size(experts); ++slot)
      if (checked_expert(experts, slot, num_experts) == i / width)
        sum += load(weights, slot) * load(dy, slot / top_k * width + i % width);
    put(args, 0, i, sum);
  }
}

}  // namespace anabatic::kernels::ref
