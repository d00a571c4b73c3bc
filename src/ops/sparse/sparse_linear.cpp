// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_linear.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ops/build.h"
#include "ops/check.h"

namespace anabatic::ops {
namespace {

using spec::SparseLayout;

TensorType of_each_matrix(const TensorType& weight, DType dtype, std::vector<std::int64_t> shape) {
  if (weight.ndim() == 3) shape.insert(shape.begin(), weight.dim(0));
  return tensor_type(dtype, std::move(shape));
}

// Operands of a call, of which `ndim` more dimensions are of a stack.
struct Sparse {
  const Check& check;
  ir::Types inputs;
  bool is_grouped;

  // The layout of input `i`, an index of matrices with so many lines of this depth.
  SparseLayout index(int i, std::int64_t lines, std::int64_t depth) const {
    const Operand index = index_operand(i);
    check.row_major(index);
    const SparseLayout layout =
        spec::sparse_layout_by_index(sparse_pattern(check), lines, depth, index.dim(-1));
    if (layout.is_two_of_four) {
      if (depth % 4 != 0)
        check.fail(fmt::format("expected a multiple of 4 as the depth of 2:4, got {}", depth));
      check.size(index, -1, layout.index_size());
      return layout;
    }
    if (layout.kept < 0 || layout.kept > layout.panels() * layout.steps())
      check.fail(
          fmt::format("expected index of {} panels of {} steps, which is i32[{}] to i32[{}] "
                      "a matrix, got {}",
                      layout.panels(), layout.steps(), layout.panels() + 1,
                      layout.panels() * (1 + layout.steps()) + 1, to_string(*index.type)));
    return layout;
  }
  Operand index_operand(int i) const {
    const int ndim = is_grouped ? 2 : 1;
    if (sparse_pattern(check) != spec::SparsityPattern::kTwoOfFour)
      return check.i32(i, "index", ndim);
    const TensorType& type = inputs[static_cast<std::size_t>(i)];
    if (type.dtype != DType::kUInt8 || type.ndim() != ndim)
      check.fail(fmt::format("expected index to be u8 of {} dimension{} for 2:4, got {}", ndim,
                             ndim > 1 ? "s" : "", to_string(type)));
    return {"index", &type};
  }
  void values(int i, int index_input, const SparseLayout& layout, const Operand& rows) const {
    const Operand values = check.floating(i, "values", is_grouped ? 3 : 2);
    check.row_major(values);
    check.same_dtype(values, rows);
    check.size(values, -1, layout.block_size());
    check.size(values, -2, layout.kept);
    if (is_grouped) check.same_dim(values, 0, index_operand(index_input), 0);
  }
  void offsets(int i, int index_input) const {
    if (!is_grouped) return;
    check.size(check.i32(i, "offsets", 1), 0, index_operand(index_input).dim(0) + 1);
  }
};

// x or dy, then values and index, then offsets of experts; or a bias.
template <bool kGrouped>
std::vector<TensorType> infer_product(std::string_view op, std::string_view rows_name,
                                      std::string_view lines, ir::Types inputs,
                                      const spec::Attributes& attributes) {
  const Check check(op, inputs, attributes, {"pattern", lines});
  const Operand rows = check.floating(0, rows_name, 2);
  const Sparse sparse{check, inputs, kGrouped};
  const std::int64_t width = check.positive_int(lines);
  const SparseLayout layout = sparse.index(2, width, rows.dim(1));
  sparse.values(1, 2, layout, rows);
  sparse.offsets(3, 2);
  if (!kGrouped && check.num_inputs() == 4) check.size(check.wide(3, "bias", 1), 0, width);
  return {typed(rows.dtype(), {rows.dim(0), width})};
}

std::vector<TensorType> infer_sparse_linear(ir::Types inputs, const spec::Attributes& attributes) {
  return infer_product<false>("sparse_linear", "x", "out", inputs, attributes);
}
std::vector<TensorType> infer_grouped_sparse_linear(ir::Types inputs,
                                                    const spec::Attributes& attributes) {
  return infer_product<true>("grouped_sparse_linear", "x", "out", inputs, attributes);
}
std::vector<TensorType> infer_sparse_input_gradient(ir::Types inputs,
                                                    const spec::Attributes& attributes) {
  return infer_product<false>("sparse_linear_input_gradient", "dy", "in", inputs, attributes);
}
std::vector<TensorType> infer_grouped_sparse_input_gradient(ir::Types inputs,
                                                            const spec::Attributes& attributes) {
  return infer_product<true>("grouped_sparse_linear_input_gradient", "dy", "in", inputs,
                             attributes);
}

template <bool kGrouped>
std::vector<TensorType> infer_weight_gradient(std::string_view op, ir::Types inputs,
                                              const spec::Attributes& attributes) {
  const Check check(op, inputs, attributes, {"pattern"}, {"present_only"});
  const Operand x = check.floating(0, "x", 2), dy = check.floating(1, "dy", 2);
  check.same_dtype(dy, x);
  check.same_dim(x, 0, dy, 0);
  const Sparse sparse{check, inputs, kGrouped};
  if (sparse_pattern(check) == spec::SparsityPattern::kTwoOfFour)
    check.fail("expected pattern 'block32', 'block16' or 'unstructured', got '2:4'");
  sparse.index(2, dy.dim(1), x.dim(1));
  sparse.offsets(3, 2);
  const DType dtype = wide_dtype(x.dtype());
  if (!kGrouped) return {typed(dtype, {dy.dim(1), x.dim(1)})};
  return {typed(dtype, {inputs[2].dim(0), dy.dim(1), x.dim(1)})};
}
std::vector<TensorType> infer_sparse_weight_gradient(ir::Types inputs,
                                                     const spec::Attributes& attributes) {
  return infer_weight_gradient<false>("sparse_linear_weight_gradient", inputs, attributes);
}
std::vector<TensorType> infer_grouped_sparse_weight_gradient(ir::Types inputs,
                                                             const spec::Attributes& attributes) {
  return infer_weight_gradient<true>("grouped_sparse_linear_weight_gradient", inputs, attributes);
}

// Blocks of values times the rows that meet them: all rows, or on average those of an expert.
std::int64_t product_flops(const TensorType& rows, const TensorType& index, std::int64_t lines,
                           const spec::Attributes& attributes) {
  const auto pattern = spec::sparsity_pattern_from_string(spec::get_string(attributes, "pattern"));
  const SparseLayout layout =
      spec::sparse_layout_by_index(*pattern, lines, rows.dim(1), index.dim(-1));
  return product({2, rows.dim(0), layout.kept, layout.block_size()});
}
ir::Cost sparse_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes& attributes) {
  return streaming_cost(inputs, outputs,
                        product_flops(inputs[0], inputs[2], outputs[0].dim(1), attributes));
}
ir::Cost sparse_weight_gradient_cost(ir::Types inputs, ir::Types outputs,
                                     const spec::Attributes& attributes) {
  const std::int64_t flops = product_flops(inputs[0], inputs[2], inputs[1].dim(1), attributes);
  ir::Cost cost = streaming_cost(inputs, outputs, flops);
  if (spec::get_bool_or(attributes, "present_only", false))
    cost.bytes_written = flops / std::max<std::int64_t>(2 * inputs[0].dim(0), 1) *
                         (inputs[2].ndim() == 2 ? inputs[2].dim(0) : 1) *
                         size_bytes(outputs[0].dtype);
  return cost;
}

std::string pattern_form(const spec::Attributes& attributes) {
  return spec::get_string(attributes, "pattern");
}

}  // namespace

bool has_sparse_gradient(spec::SparsityPattern pattern) { return spec::mask_block(pattern) > 1; }

spec::SparsityPattern sparse_pattern(const Check& check) {
  const std::string& word = check.string("pattern");
  const auto pattern = spec::sparsity_pattern_from_string(word);
  if (!pattern)
    check.fail(fmt::format(
        "expected pattern 'block32', 'block16', '2:4' or 'unstructured', got '{}'", word));
  return *pattern;
}

TensorType sparse_index_type(const TensorType& weight, const SparseLayout& layout) {
  return of_each_matrix(weight, layout.is_two_of_four ? DType::kUInt8 : DType::kInt32,
                        {layout.index_size()});
}
TensorType sparse_values_type(const TensorType& weight, DType dtype, const SparseLayout& layout) {
  return of_each_matrix(weight, dtype, {layout.kept, layout.block_size()});
}

const ir::OpSchema kSparseLinear{
    .name = "sparse_linear",
    .min_inputs = 3,
    .max_inputs = 4,
    .signature = "(x [T,K], values [B,S], index i32[P+1+B] or u8, bias? f32[N]) -> [T,N] like x",
    .infer = infer_sparse_linear,
    .cost = sparse_cost,
    .form = pattern_form};

const ir::OpSchema kSparseLinearInputGradient{
    .name = "sparse_linear_input_gradient",
    .min_inputs = 3,
    .max_inputs = 3,
    .signature = "(dy [T,N], values [B,S], index i32[P+1+B] or u8) -> [T,K] like dy",
    .infer = infer_sparse_input_gradient,
    .cost = sparse_cost,
    .form = pattern_form};

const ir::OpSchema kSparseLinearWeightGradient{
    .name = "sparse_linear_weight_gradient",
    .min_inputs = 3,
    .max_inputs = 3,
    .signature = "(x [T,K], dy [T,N], index i32[P+1+B]) -> f32[N,K]",
    .infer = infer_sparse_weight_gradient,
    .cost = sparse_weight_gradient_cost,
    .form = pattern_form,
    .can_accumulate = true};

const ir::OpSchema kGroupedSparseLinear{
    .name = "grouped_sparse_linear",
    .min_inputs = 4,
    .max_inputs = 4,
    .signature =
        "(x [R,K], values [E,B,S], index i32[E,P+1+B] or u8, offsets i32[E+1]) -> [R,N] like x",
    .infer = infer_grouped_sparse_linear,
    .cost = sparse_cost,
    .form = pattern_form};

const ir::OpSchema kGroupedSparseLinearInputGradient{
    .name = "grouped_sparse_linear_input_gradient",
    .min_inputs = 4,
    .max_inputs = 4,
    .signature =
        "(dy [R,N], values [E,B,S], index i32[E,P+1+B] or u8, offsets i32[E+1]) -> [R,K] like dy",
    .infer = infer_grouped_sparse_input_gradient,
    .cost = sparse_cost,
    .form = pattern_form};

const ir::OpSchema kGroupedSparseLinearWeightGradient{
    .name = "grouped_sparse_linear_weight_gradient",
    .min_inputs = 4,
    .max_inputs = 4,
    .signature = "(x [R,K], dy [R,N], index i32[E,P+1+B], offsets i32[E+1]) -> f32[E,N,K]",
    .infer = infer_grouped_sparse_weight_gradient,
    .cost = sparse_weight_gradient_cost,
    .form = pattern_form,
    .can_accumulate = true};

}  // namespace anabatic::ops
