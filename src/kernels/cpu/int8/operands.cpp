// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/int8/operands.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "device/thread_team.h"
#include "kernels/cpu/int8/line_arrays.h"

namespace anabatic::kernels::cpu {
namespace {

using Int = std::int64_t;

const Matrix& matrix_of(const Gemm& gemm, Side side) {
  return side == Side::kLeft ? gemm.a : gemm.b;
}

// Left operands whose lines are contiguous stay rows.
Int8LinesShape shape_of(const Gemm& gemm, Side side) {
  const bool is_left = side == Side::kLeft;
  return {.lines = is_left ? gemm.rows : gemm.columns,
          .depth = gemm.depth,
          .in_panels = !is_left || gemm.a.column_stride != 1,
          .has_compensation = !is_left,
          .has_second = matrix_of(gemm, side).fallback < kNoFallback};
}

// A gathered operand is quantised in its gathered order.
Int8Source source_of(const Gemm& gemm, Side side, const Int8LinesShape& shape) {
  const Matrix& matrix = matrix_of(gemm, side);
  Int8Source source{.data = matrix.data,
                    .dtype = matrix.dtype,
                    .rows = shape.in_panels ? shape.depth : shape.lines,
                    .columns = shape.in_panels ? shape.lines : shape.depth,
                    .index = matrix.index,
                    .norm = matrix.norm};
  if (side == Side::kRight) {
    ANABATIC_CHECK(matrix.column_stride == 1,
                   "[int8 product] expected a right operand in int8, or contiguous along columns");
    source.stride = matrix.row_stride;
  } else {
    source.stride = shape.in_panels ? matrix.column_stride : matrix.row_stride;
  }
  return source;
}

bool is_same(const Int8Source& a, const Int8Source& b) {
  return a.data == b.data && a.index.data == b.index.data && a.rows == b.rows &&
         a.columns == b.columns && a.stride == b.stride && a.norm.statistics == b.norm.statistics &&
         a.norm.weight == b.norm.weight && a.norm.bias == b.norm.bias;
}

}  // namespace

struct Int8OperandCoding::Coded {
  Int8Source source;
  int fallback;
  Side side;
  Int8Lines lines;
  // Rows or panels of a part, which is one thread's; parts of the operands before.
  Int lines_of_part, first_part;

  Int num_lines() const {
    return lines.in_panels ? ceil_div(source.columns, kInt8Panel) : source.rows;
  }
};

// The tables that begin the workspace. A null base only counts bytes.
struct Int8OperandCoding::Tables {
  Tables(std::byte* base, Int num_gemms, Int num_products) {
    const Int count = num_gemms * num_products,
              operand_bytes = round_up(count * Int{sizeof(Int8Operands)}, kInt8Alignment);
    bytes = operand_bytes + round_up(2 * count * Int{sizeof(Coded)}, kInt8Alignment);
    if (base == nullptr) return;
    operands = reinterpret_cast<Int8Operands*>(base);
    coded = reinterpret_cast<Coded*>(base + operand_bytes);
  }

  Int8Operands* operands = nullptr;
  Coded* coded = nullptr;  // at most two a product
  Int bytes = 0;
};

std::int64_t Int8OperandCoding::table_bytes(std::int64_t num_gemms, std::int64_t num_products) {
  return Tables(nullptr, num_gemms, num_products).bytes;
}

std::int64_t int8_operand_bytes(const Gemm& whole, Side side, std::int64_t num_groups) {
  const Int8LinesShape shape = shape_of(whole, side);
  // Each group begins a block and a unit, and each of its arrays a line of the cache.
  const Int parts = shape.in_panels ? num_groups : 0;
  Int8Lines none;
  Int bytes = 0;
  for_int8_arrays(
      int8_array_sizes(shape, int8_units(shape.depth) + parts, int8_blocks(shape.depth) + parts),
      shape.has_second, none, [&](Int count, auto* pointer) {
        bytes +=
            round_up(count * Int{sizeof *pointer}, kInt8Alignment) + num_groups * kInt8Alignment;
      });
  return bytes;
}

std::int64_t int8_bytes(const Gemm& whole, std::int64_t num_groups) {
  Int bytes = Int8OperandCoding::table_bytes(num_groups, 1 + whole.num_further);
  Gemm gemm = whole;
  for (Int p = 0; p <= whole.num_further; ++p) {
    if (p > 0) gemm.depth = whole.further[p - 1].depth;
    bytes += int8_operand_bytes(gemm, Side::kLeft, num_groups);
    if (!gemm.b.is_packed) bytes += int8_operand_bytes(gemm, Side::kRight, num_groups);
  }
  return bytes;
}

Int8OperandCoding::Int8OperandCoding(std::byte* space, std::int64_t num_gemms,
                                     std::int64_t num_products)
    : num_products_(num_products) {
  const Tables tables(space, num_gemms, num_products);
  operands_ = tables.operands;
  coded_ = tables.coded;
  next_ = space + tables.bytes;
}

void Int8OperandCoding::add(const Gemm& gemm, std::int64_t i) {
  Gemm product = gemm;
  for (Int p = 0; p < num_products_; ++p) {
    if (p > 0) {
      product.a = gemm.further[p - 1].a;
      product.b = gemm.further[p - 1].b;
      product.depth = gemm.further[p - 1].depth;
    }
    Int8Operands* operands = std::construct_at(operands_ + i * num_products_ + p);
    if (gemm.rows == 0) continue;  // has no block
    operands->a = find_or_add(product, Side::kLeft);
    if (!product.b.is_packed) operands->b = find_or_add(product, Side::kRight);
  }
}

const Int8Lines* Int8OperandCoding::find_or_add(const Gemm& gemm, Side side) {
  const Int8LinesShape shape = shape_of(gemm, side);
  const Int8Source source = source_of(gemm, side, shape);
  // Most often it is that of the Gemm before.
  for (Int n = num_coded_; n-- > 0;)
    if (coded_[n].side == side && is_same(coded_[n].source, source)) return &coded_[n].lines;
  // Panels next to each other have lines of the cache in common.
  constexpr Int kPartElements = 1 << 16, kPanelsOfPart = 4;
  const Int part = kPartElements / std::max(shape.depth, Int{1});
  Coded* coded = std::construct_at(
      coded_ + num_coded_++,
      Coded{.source = source,
            .fallback = matrix_of(gemm, side).fallback,
            .side = side,
            .lines = int8_lines_at(shape, next_),
            .lines_of_part = shape.in_panels
                                 ? round_up(std::max(part / kInt8Panel, Int{1}), kPanelsOfPart)
                                 : std::max(part, Int{1}),
            .first_part = num_parts_});
  if (shape.depth > 0) num_parts_ += ceil_div(coded->num_lines(), coded->lines_of_part);
  return &coded->lines;
}

void Int8OperandCoding::run(const Int8Coding& coding, device::ThreadTeam& team,
                            CodingCounts* counts) {
  team.for_tasks(num_parts_, [&](Int part) {
    const Coded *begin = coded_, *end = coded_ + num_coded_;
    const Coded& of = *(
        std::upper_bound(begin, end, part, [](Int a, const Coded& b) { return a < b.first_part; }) -
        1);
    const Int first = (part - of.first_part) * of.lines_of_part,
              last = std::min(first + of.lines_of_part, of.num_lines());
    if (of.lines.in_panels)
      coding.columns(of.source, first, last, of.fallback, of.lines);
    else
      coding.rows(of.source, first, last, of.fallback, of.lines, counts);
  });
}

}  // namespace anabatic::kernels::cpu
