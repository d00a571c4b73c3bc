// SPDX-License-Identifier: Apache-2.0
// How a head with its loss cuts its rows and its vocabulary, the products of a cut, and their
// memory.
#pragma once
#include <optional>

#include "kernels/cpu/call.h"
#include "kernels/cpu/gemm.h"

namespace anabatic::kernels::cpu::head {

using Int = std::int64_t;

// Rows are cut at multiples of every vector.
inline constexpr Int kRowUnit = 16;
// Classes whose exponentials a thread copies at least, to write their weight-gradient over them.
inline constexpr Int kLeastCopiedClasses = 16;

struct Shape {
  Int rows, width, classes;
  DType dtype;   // of packed weights and exponentials: f32 where x and weight are f16
  DType stored;  // of x and weight
  bool with_input_gradient, with_weight_gradient;  // the latter with the former alone
  Int slices;                                      // workspace as for so many chunks
  Int sum_terms;                                   // rows of a block of the weight-gradient's sums
  bool is_int8;                                    // int8 products, of a bf16 x and weight
  int fallback;                                    // of x in them

  // In place of those of a chunk: an int8 weight gradient has terms of labels after the last one.
  bool keeps_all_rows() const { return is_int8 && with_weight_gradient; }
};
// `num_outputs`: loss, dx and dweight, or the first ones of them.
Shape shape_of(const TensorType& x, const TensorType& weight, std::size_t num_outputs,
               const spec::Attributes& attributes);

// Derived from shape, engine, threads and rows at a time. Sums depend only on the parts, which
// follow from the shape alone: chunks are cut where blocks of the weight gradient's sums end, and
// continue the sums of the chunks before.
struct Tiling {
  Int rows;                 // at a time, at most
  Int depth;                // of the weight-gradient, at most
  Int step_columns;         // of logits in flight
  Int pack_unit;            // columns that threads pack apart
  bool is_held;             // exponentials are stored in the weight gradient
  Int parts, part_columns;  // of the vocabulary
  // Threads that share the blocks of a part. Each thread has all parts, one after the other, if
  // threads cannot be divided evenly among parts.
  Int lanes;
  bool packs_apart;  // each thread for itself
  DType operand;     // of what the engine multiplies with x or e
  Int exponential_bytes;
  Int block_rows;  // at most
  Int x_stride, step_stride, rounded_stride;
  // Packed weights of a step: columns of the logits, then, in float, depth of the input-gradient.
  Int step_bytes, step_depth_offset;
  Int stretch_steps;
  Int most_packings;  // side by side, by a team of any size up to this one
  // Bytes of exponentials: of all classes or, if they are held, of those that a thread copies; 0
  // without a weight gradient.
  Int turned_stride;

  Tiling(const Shape& shape, const GemmEngine& engine, int num_threads, Int rows_at_once,
         Int most_depth, bool holds);

  Int stretch_columns() const { return stretch_steps * step_columns; }
  Int stretch_bytes() const { return stretch_steps * step_bytes; }
  Int turned_row_bytes() const { return turned_stride * exponential_bytes; }
  // What packing takes of rows at a time, in passes over the vocabulary: threads that read what
  // others packed take as much again.
  Int passes() const { return packs_apart ? lanes : 2; }
};

// The three float products; operands' data is filled in by the caller.
Gemm logits_product(const Shape& shape, const Tiling& tiling, Int rows);
Gemm input_gradient_product(const Shape& shape, const Tiling& tiling, Int rows);
Gemm weight_gradient_product(const Shape& shape, const Tiling& tiling, Int rows, Int stride);

// What int8 products need of all live rows after the last chunk.
struct Int8Rows {
  float *factors, *label_factors;  // of HeadGradient, without signs
  std::int32_t *labels, *by_label;
};

// All of the call's memory, in the order of a struct; a null base only counts.
struct Space {
  Int bytes = 0;
  std::int32_t* live;  // rows that count, ascending
  double* losses;      // of the live rows
  Int8Rows of_int8;
  float *of_label, *shift;
  float* largest;  // [parts, rows], like the next
  double* sums;
  std::byte* x;  // copies: of int8 products those of all live rows, in the end with those signs
  std::byte *x_rows, *x_panels, *turned, *weight_panels;
  float* input_gradient;  // [parts, rows, width]
  std::byte* threads;     // a part for each
  Int thread_bytes, rounded_offset, coded_offset, engine_offset;

  Space(const Shape& shape, const Tiling& tiling, const GemmEngine& engine, int num_threads,
        std::byte* base);
};

// How rows are cut.
struct Cut {
  std::optional<Tiling> held, rest;  // the first chunk, where the weight-gradient holds it; others
};
// `adds`: to an existing weight gradient.
Cut cut_rows(const Shape& shape, const GemmEngine& engine, int num_threads, bool adds);

// `rows` in as few parts as `most` allows, each a multiple of `unit` but the last one, as `most`
// is unless it holds all; a short last one would pack the weights for few rows.
Int even_rows(Int rows, Int most, Int unit);

}  // namespace anabatic::kernels::cpu::head
