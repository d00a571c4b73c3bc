// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/head/head_tiling.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/rounding.h"
#include "kernels/cpu/head/head_int8.h"
#include "tensor/panels.h"

namespace anabatic::kernels::cpu::head {
namespace {

// Columns of a step: whole tiles of the engines, and of int8 weights.
constexpr Int kStepColumns = 480, kInt8StepColumns = 384;
// Rows of a block are best multiples of every register tile; rows that share a block's products.
constexpr Int kMostBlockRows = 240;
// Rows of a chunk that are worth packing the weights for.
constexpr Int kRowsAPacking = kMostBlockRows / 2;
// Most bytes for the exponentials of a chunk outside the weight gradient, and the number of rows
// beyond which more at a time gain nothing.
constexpr Int kChunkBytes = Int{48} << 20, kMostRowsAtOnce = 1152;
// What the packed weights of a stretch may take, unless a step takes more: of more, some would
// leave a core's cache before it is read.
constexpr Int kStretchBytes = Int{1} << 20;
// A vocabulary of two parts has at least so many classes. Like the place where it is cut, this
// decides how results are rounded, so neither depends on threads or tiles.
constexpr Int kLeastClassesInParts = 2048, kPartUnit = 64;
// Rows of a block of the weight-gradient's sums: few enough that a call in slices finds ends of
// blocks to cut at, and a chunk fits; enough that their number stays small.
constexpr Int kLeastSumTerms = 64, kMostBlocksOfSlices = 16;

// The next odd number of cache lines: rows of a power of two would share few cache sets.
Int spread(Int elements, Int element_bytes) {
  const Int line = 64 / element_bytes;
  return round_up(elements + line, 2 * line) - line;
}

// The stride of rows that are read in place where they are short enough.
Int operand_stride(Int elements, DType dtype) {
  const Int bytes = size_bytes(dtype);
  return elements * bytes < kInPlaceRowBytes ? kInPlaceRowBytes / bytes : spread(elements, bytes);
}

// Rows whose exponentials stay within kChunkBytes.
Int rows_of_chunk(const Shape& shape) {
  const Int bytes = std::max<Int>(shape.classes * size_bytes(shape.dtype), 1);
  return kChunkBytes / bytes - 32;
}

// A function of the shape alone, not of slices or threads: both find the same blocks.
Int sum_terms_of(const Shape& shape) {
  const Int most = std::min(rows_of_chunk(shape), shape.rows / kMostBlocksOfSlices);
  Int terms = kMostSumTerms;
  while (terms > kLeastSumTerms && terms > most) terms /= 2;
  return terms;
}

Matrix matrix(const void* data, DType dtype, Int row_stride, Int column_stride) {
  return {.data = static_cast<const std::byte*>(data),
          .dtype = dtype,
          .row_stride = row_stride,
          .column_stride = column_stride};
}

Matrix packed(DType dtype) { return {.dtype = dtype, .is_packed = true}; }

}  // namespace

Shape shape_of(const TensorType& x, const TensorType& weight, std::size_t num_outputs,
               const spec::Attributes& attributes) {
  Shape shape{.rows = x.dim(0),
              .width = x.dim(1),
              .classes = weight.dim(0),
              .dtype = x.dtype == DType::kFloat16 ? DType::kFloat32 : x.dtype,
              .stored = x.dtype,
              .with_input_gradient = num_outputs > 1,
              .with_weight_gradient = num_outputs > 2,
              .slices = spec::get_int_or(attributes, "slices", 1),
              .sum_terms = 0,
              .is_int8 = false,
              .fallback = kNoFallback};
  shape.is_int8 = attributes.contains("fallback");
  shape.fallback = static_cast<int>(spec::get_int_or(attributes, "fallback", kNoFallback));
  shape.sum_terms = shape.is_int8 ? kInt8Block : sum_terms_of(shape);
  return shape;
}

Tiling::Tiling(const Shape& shape, const GemmEngine& engine, int num_threads, Int rows_at_once,
               Int most_depth, bool holds)
    : rows(rows_at_once),
      depth(most_depth),
      step_columns(shape.is_int8 ? kInt8StepColumns : kStepColumns),
      pack_unit(shape.is_int8 ? kInt8Block : kPanelColumns),
      is_held(holds),
      parts(shape.classes >= kLeastClassesInParts ? 2 : 1),
      part_columns(parts == 1 ? shape.classes
                              : round_up(ceil_div(shape.classes, parts),
                                         shape.is_int8 ? kInt8Block : kPartUnit)),
      lanes(num_threads % parts == 0 ? num_threads / parts : num_threads),
      operand(!shape.is_int8 && engine.accepts(DType::kFloat32, DType::kFloat32)
                  ? DType::kFloat32
                  : DType::kBFloat16),
      exponential_bytes(size_bytes(shape.dtype)),
      block_rows(std::min(kMostBlockRows, rows)) {
  const Int columns = std::min(step_columns, shape.classes);
  // Engines of int8 products read none of these rows.
  const auto stride = [&](Int elements, DType dtype) {
    return shape.is_int8 ? spread(elements, size_bytes(dtype)) : operand_stride(elements, dtype);
  };
  x_stride = stride(shape.width, operand);
  step_stride = stride(columns, DType::kFloat32);
  rounded_stride = stride(columns, DType::kBFloat16);
  step_depth_offset = panel_shape(shape.dtype, columns, shape.width, false).num_elements() *
                      size_bytes(shape.dtype);
  step_bytes = step_depth_offset;
  if (shape.is_int8)
    step_bytes = int8_step_bytes(columns, shape.width);
  else if (shape.with_input_gradient)
    step_bytes += panel_shape(shape.dtype, columns, shape.width, true).num_elements() *
                  size_bytes(shape.dtype);
  stretch_steps = std::clamp(kStretchBytes / std::max<Int>(step_bytes, 1), Int{1},
                             std::max<Int>(ceil_div(part_columns, step_columns), 1));
  const Int most_lanes = std::max<Int>(rows / kRowsAPacking, 1);
  packs_apart = lanes <= most_lanes;
  most_packings = std::min<Int>(parts * most_lanes, num_threads);
  turned_stride = shape.with_weight_gradient ? spread(depth, exponential_bytes) : 0;
}

Gemm logits_product(const Shape& shape, const Tiling& tiling, Int rows) {
  return {.rows = rows,
          .columns = std::min(tiling.step_columns, shape.classes),
          .depth = shape.width,
          .a = matrix(nullptr, tiling.operand, tiling.x_stride, 1),
          .b = packed(shape.dtype),
          .c_stride = tiling.step_stride};
}

Gemm input_gradient_product(const Shape& shape, const Tiling& tiling, Int rows) {
  return {.rows = rows,
          .columns = shape.width,
          .depth = std::min(tiling.step_columns, shape.classes),
          .a = tiling.operand == DType::kFloat32
                   ? matrix(nullptr, DType::kFloat32, tiling.step_stride, 1)
                   : matrix(nullptr, DType::kBFloat16, tiling.rounded_stride, 1),
          .b = packed(shape.dtype),
          .c_stride = shape.width};
}

Gemm weight_gradient_product(const Shape& shape, const Tiling& tiling, Int rows, Int stride) {
  return {.rows = shape.classes,
          .columns = shape.width,
          .depth = rows,
          .a = matrix(nullptr, shape.dtype, stride, 1),
          .b = packed(tiling.operand),
          .c_stride = shape.width,
          .sum_terms = shape.sum_terms};
}

Space::Space(const Shape& shape, const Tiling& tiling, const GemmEngine& engine, int num_threads,
             std::byte* base) {
  const auto take = [&]<class T>(T*& pointer, Int count, Int element_bytes = sizeof(T)) {
    pointer = base == nullptr ? nullptr : reinterpret_cast<T*>(base + bytes);
    bytes += round_up(count * element_bytes, 64);
  };
  const Int rows = tiling.rows;
  take(live, shape.rows);
  take(losses, shape.rows);
  const Int kept = shape.keeps_all_rows() ? shape.rows : 0;
  take(of_int8.factors, kept);
  take(of_int8.label_factors, kept);
  take(of_int8.labels, kept);
  take(of_int8.by_label, kept);
  take(x, (shape.keeps_all_rows() ? shape.rows : rows) * tiling.x_stride,
       size_bytes(tiling.operand));
  take(of_label, rows);
  take(shift, rows);
  take(largest, tiling.parts * rows);
  take(sums, tiling.parts * rows);
  if (shape.is_int8) {
    take(x_rows, int8_lines_bytes(int8_x_rows(shape, rows)), 1);
    take(x_panels,
         shape.with_weight_gradient ? int8_lines_bytes(int8_x_panels(shape, tiling.depth)) : 0, 1);
  } else {
    take(x_rows, 0, 1);
    take(x_panels,
         shape.with_weight_gradient
             ? panel_shape(tiling.operand, tiling.depth, shape.width, true).num_elements()
             : 0,
         size_bytes(tiling.operand));
  }
  take(weight_panels, tiling.stretch_bytes() * tiling.most_packings, 1);
  take(turned, tiling.is_held ? 0 : tiling.turned_row_bytes() * shape.classes, 1);
  take(input_gradient, shape.with_input_gradient ? tiling.parts * rows * shape.width : 0);
  rounded_offset = tiling.block_rows * tiling.step_stride * 4;
  engine_offset = rounded_offset;
  if (tiling.operand == DType::kBFloat16)
    engine_offset += tiling.block_rows * tiling.rounded_stride * 2;
  coded_offset = engine_offset = round_up(engine_offset, 64);
  if (shape.is_int8) {  // exponentials of logits
    engine_offset = coded_offset + int8_lines_bytes(int8_exponentials(shape, tiling));
    if (shape.with_weight_gradient)  // then its own, when those are gone
      engine_offset = std::max(engine_offset, int8_lines_bytes(int8_probabilities(
                                                  shape, std::max(tiling.depth, tiling.rows))));
  } else if (tiling.is_held) {  // copies of exponentials, when the logits are gone
    engine_offset =
        round_up(std::max(engine_offset, kLeastCopiedClasses * tiling.turned_row_bytes()), 64);
  }
  Int engine_bytes = 0;
  const auto room_for = [&](const Gemm& gemm) {
    engine_bytes = std::max(engine_bytes, engine.workspace_bytes(gemm));
  };
  if (shape.is_int8) {
    const std::array products = int8_products(shape, tiling);
    for (const Gemm& gemm : std::span(products).first(shape.with_weight_gradient ? 3 : 2))
      room_for(gemm);
  } else {
    room_for(logits_product(shape, tiling, tiling.block_rows));
    if (shape.with_input_gradient)
      room_for(input_gradient_product(shape, tiling, tiling.block_rows));
    if (shape.with_weight_gradient)
      room_for(weight_gradient_product(shape, tiling, tiling.depth, tiling.turned_stride));
  }
  thread_bytes = engine_offset + engine_bytes;
  take(threads, thread_bytes * num_threads);
}

Int even_rows(Int rows, Int most, Int unit) {
  return std::min(round_up(ceil_div(rows, ceil_div(rows, most)), unit), most);
}

Cut cut_rows(const Shape& shape, const GemmEngine& engine, int num_threads, bool adds) {
  const Int all = round_up(std::max<Int>(shape.rows, 1), kRowUnit);
  if (!shape.with_weight_gradient) {
    const Int rows = std::min(kMostBlockRows * std::max(4, 2 * num_threads), all);
    return {.held = std::nullopt, .rest = Tiling(shape, engine, num_threads, rows, rows, false)};
  }
  Cut cut;
  // Chunks end where blocks of sums do.
  const Int unit = shape.sum_terms;
  const auto whole = [unit](Int rows) { return std::max(rows / unit, Int{1}) * unit; };
  const Int of_slice = round_up(ceil_div(all, shape.slices), unit);
  const Int most =
      std::min({whole(std::min(rows_of_chunk(shape), kMostRowsAtOnce)), of_slice, all});
  const Int fitting =
      shape.width * Int{sizeof(float)} / size_bytes(shape.dtype) / kRowUnit * kRowUnit;
  Int held = fitting < all ? fitting / unit * unit : all;
  if (adds || held < most) held = 0;
  if (held < all) {
    const Int rows = even_rows(all - held, std::min(most, all - held), unit);
    cut.rest.emplace(shape, engine, num_threads, rows, rows, false);
  }
  if (held == 0) return cut;
  // As many at a time as need no more bytes than the chunks after them.
  const Int bytes = cut.rest ? Space(shape, *cut.rest, engine, num_threads, nullptr).bytes : 0;
  for (Int parts = ceil_div(held, kMostRowsAtOnce);; ++parts) {
    const Int rows = round_up(ceil_div(held, parts), kRowUnit);
    cut.held.emplace(shape, engine, num_threads, rows, held, true);
    if (rows <= of_slice || Space(shape, *cut.held, engine, num_threads, nullptr).bytes <= bytes)
      return cut;
  }
}

}  // namespace anabatic::kernels::cpu::head
