// SPDX-License-Identifier: Apache-2.0
// How head_loss.cpp cuts its rows and its vocabulary, the products of a cut, and their memory.
#pragma once
#include <optional>

#include "kernels/cpu/call.h"
#include "kernels/cpu/gemm.h"

namespace anabatic::kernels::cpu::head {

using Int = std::int64_t;

// Columns of logits in flight; rows are cut at multiples of every vector.
inline constexpr Int kStepColumns = 480, kRowUnit = 16;
// Classes whose exponentials a thread copies at least, to write their weight-gradient over them.
inline constexpr Int kLeastCopiedClasses = 16;

struct Shape {
  Int rows, width, classes;
  DType dtype;
  bool with_input_gradient, with_weight_gradient;  // the latter with the former alone
  Int slices;                                      // workspace as for so many chunks
  Int sum_terms;                                   // rows of a block of the weight-gradient's sums
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
  // Packed weights of a step: columns of the logits, then depth of the input-gradient.
  Int step_bytes, step_depth_offset;
  Int stretch_steps;
  Int most_packings;  // side by side, by a team of any size up to this one
  // Bytes of exponentials: of all classes or, if they are held, of those that a thread copies; 0
  // without a weight gradient.
  Int turned_stride;

  Tiling(const Shape& shape, const GemmEngine& engine, int num_threads, Int rows_at_once,
         Int most_depth, bool holds);

  Int stretch_columns() const { return stretch_steps * kStepColumns; }
  Int stretch_bytes() const { return stretch_steps * step_bytes; }
  Int turned_row_bytes() const { return turned_stride * exponential_bytes; }
  // What packing takes of rows at a time, in passes over the vocabulary: threads that read what
  // others packed take as much again.
  Int passes() const { return packs_apart ? lanes : 2; }
};

// The three products; operands' data is filled in by the caller.
Gemm logits_product(const Shape& shape, const Tiling& tiling, Int rows);
Gemm input_gradient_product(const Shape& shape, const Tiling& tiling, Int rows);
Gemm weight_gradient_product(const Shape& shape, const Tiling& tiling, Int rows, Int stride);

// All of the call's memory, in the order of a struct; a null base only counts.
struct Space {
  Int bytes = 0;
  std::int32_t* live;  // rows that count, ascending
  double* losses;      // of the live rows
  float *of_label, *shift;
  float* largest;  // [parts, rows], like the next
  double* sums;
  std::byte *x, *x_panels, *turned, *weight_panels;
  float* input_gradient;  // [parts, rows, width]
  std::byte* threads;     // a part for each
  Int thread_bytes, rounded_offset, engine_offset;

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
