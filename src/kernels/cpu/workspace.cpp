// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/rounding.h"
#include "kernels/cpu/optimizer/rows.h"
#include "kernels/cpu/router_workspace.h"
#include "kernels/cpu/vector_rows.h"
#include "spec/sparsity.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu {

// A double for each row of the first input.
std::int64_t row_doubles_workspace_bytes(const spec::Problem& problem) {
  return problem.inputs[0].dim(0) * std::int64_t{sizeof(double)};
}

// A row like each of the outputs for each block of rows of the first input. Sums of groups need
// none.
std::int64_t column_partials_workspace_bytes(const spec::Problem& problem) {
  if (problem.outputs[0].ndim() > 1) return 0;
  const std::int64_t width = std::max<std::int64_t>(problem.outputs[0].num_elements(), 1);
  return ceil_div(problem.inputs[0].num_elements() / width, kRowBlock) * width *
         std::ssize(problem.outputs) * std::int64_t{sizeof(float)};
}

// A sum for each element of the output, whose rows are rounded up to strips.
std::int64_t expert_bias_workspace_bytes(const spec::Problem& problem) {
  const TensorType& gradient = problem.outputs[0];
  return gradient.dim(0) * round_up(gradient.dim(1), kExpertBiasStrip) *
         std::int64_t{sizeof(double)};
}

// A place in an order for each token.
std::int64_t embedding_gradient_workspace_bytes(const spec::Problem& problem) {
  return problem.inputs[0].num_elements() * std::int64_t{sizeof(std::int32_t)};
}

// The norm's weight, for rows of 16 bits.
std::int64_t paired_weight_workspace_bytes(const spec::Problem& problem) {
  if (problem.inputs[0].dtype == DType::kFloat32) return 0;
  return problem.inputs[1].num_elements() * std::int64_t{sizeof(float)};
}

// The same of a norm that has a bias.
std::int64_t paired_weight_and_bias_workspace_bytes(const spec::Problem& problem) {
  return 2 * paired_weight_workspace_bytes(problem);
}

// The weights of two norms, where there are any.
std::int64_t rope_pair_workspace_bytes(const spec::Problem& problem) {
  if (problem.inputs.size() == 3) return 0;
  return 2 * problem.inputs[3].num_elements() * std::int64_t{sizeof(float)};
}

// Counts and sums for each block of rows, and its scratch.
std::int64_t router_workspace_bytes(const spec::Problem& problem) {
  return ceil_div(problem.inputs[0].dim(0), kRowBlock) *
         router_block_arrays(spec::router_of(*problem.attributes)) * problem.inputs[0].dim(1) *
         std::int64_t{sizeof(float)};
}

// They are squared one gradient at a time. The bits of a mask come first.
std::int64_t sum_squares_workspace_bytes(const spec::Problem& problem) {
  std::int64_t blocks = 0;
  for (const TensorType& input : problem.inputs)
    blocks = std::max(blocks, ceil_div(stored_elements(input), kElementBlock));
  return blocks * std::int64_t{sizeof(double)} +
         (spec::mask_of(*problem.attributes) ? mask_bits_bytes(problem.inputs[0]) : 0);
}

// Results of more than half of the last cache are read from memory anyway: they need not pass
// through it.
std::vector<std::byte> prepare_stream(const spec::Problem& problem) {
  std::int64_t bytes = 0;
  for (const TensorType& output : problem.outputs) bytes += output.num_bytes();
  const std::int64_t cache = problem.device->l3_bytes;
  return std::vector<std::byte>(cache > 0 && bytes > cache / 2 ? 1 : 0);
}

}  // namespace anabatic::kernels::cpu
