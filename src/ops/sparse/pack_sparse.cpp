// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/pack_sparse.h"

#include <fmt/core.h>

#include <string>

#include "ops/build.h"
#include "ops/check.h"
#include "ops/sparse/sparse_linear.h"

namespace anabatic::ops {
namespace {

using spec::SparseLayout;

// That of a weight [rows, columns], or of a stack of them.
SparseLayout packed_layout(const Check& check, std::int64_t rows, std::int64_t columns) {
  const SparseLayout layout =
      spec::sparse_layout(sparse_pattern(check), rows, columns, check.non_negative_int("kept"),
                          check.flag("transposed"));
  if (layout.is_two_of_four) {
    if (layout.depth % 4 != 0)
      check.fail(
          fmt::format("expected a multiple of 4 along the depth of 2:4, got {}", layout.depth));
    if (check.non_negative_int("kept") != layout.kept)
      check.fail(fmt::format("expected kept to be the {} panels of 2:4, got {}", layout.kept,
                             check.non_negative_int("kept")));
  } else if (layout.kept > layout.panels() * layout.steps())
    check.fail(fmt::format("expected at most {} blocks of a matrix to be kept, got {}",
                           layout.panels() * layout.steps(), layout.kept));
  return layout;
}

std::vector<TensorType> infer_sparse_index(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("sparse_index", inputs, attributes,
                    {"columns", "kept", "pattern", "rows", "transposed"});
  const std::int64_t rows = check.positive_int("rows"), columns = check.positive_int("columns");
  const TensorType& mask = inputs[0];
  if (mask.dtype != DType::kUInt8 || (mask.ndim() != 2 && mask.ndim() != 3))
    check.fail("expected mask to be u8 of two or three dimensions, got " + to_string(mask));
  TensorType weight = mask;
  weight.shape[weight.shape.size() - 2] = rows;
  weight.shape.back() = columns;
  const TensorType wanted = spec::mask_type(sparse_pattern(check), weight);
  if (!(mask == wanted))
    check.fail(fmt::format("expected mask to be {}, got {}", to_string(wanted), to_string(mask)));
  return {sparse_index_type(weight, packed_layout(check, rows, columns))};
}

std::vector<TensorType> infer_pack_sparse(ir::Types inputs, const spec::Attributes& attributes) {
  const Check check("pack_sparse", inputs, attributes, {"dtype", "kept", "pattern", "transposed"});
  const Operand x = check.floating(0, "x");
  if (x.type->ndim() != 2 && x.type->ndim() != 3)
    check.fail("expected x to be a matrix or a stack of matrices, got " + to_string(*x.type));
  check.row_major(x);
  const SparseLayout layout = packed_layout(check, x.dim(-2), x.dim(-1));
  const TensorType index = sparse_index_type(*x.type, layout);
  if (!(inputs[1] == index))
    check.fail(
        fmt::format("expected index to be {}, got {}", to_string(index), to_string(inputs[1])));
  return {sparse_values_type(*x.type, check.dtype("dtype"), layout)};
}

// Reads the present blocks alone.
ir::Cost pack_sparse_cost(ir::Types inputs, ir::Types outputs, const spec::Attributes&) {
  return {
      .flops = 0,
      .bytes_read = outputs[0].num_elements() * size_bytes(inputs[0].dtype) + inputs[1].num_bytes(),
      .bytes_written = outputs[0].num_bytes()};
}

}  // namespace

const ir::OpSchema kSparseIndex{
    .name = "sparse_index",
    .min_inputs = 1,
    .max_inputs = 1,
    .signature = "(mask u8[N/s,K/s] or u8[E,N/s,K/s]) -> i32[P+1+B] or i32[E,P+1+B], or u8",
    .infer = infer_sparse_index,
    .cost = copy_cost};

const ir::OpSchema kPackSparse{
    .name = "pack_sparse",
    .min_inputs = 2,
    .max_inputs = 2,
    .signature =
        "(x [N,K] or [E,N,K], index i32[P+1+B] or i32[E,P+1+B], or u8) -> [B,S] or [E,B,S]",
    .infer = infer_pack_sparse,
    .cost = pack_sparse_cost};

}  // namespace anabatic::ops
