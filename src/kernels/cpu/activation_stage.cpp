// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/activation_stage.h"

#include "kernels/cpu/activation_math.h"
#include "kernels/cpu/codes_math.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

// A NaN as store_pair keeps it.
Floats factor_of(const RowWeights& of, std::int64_t row) {
  if (of.weights == nullptr) return broadcast(1.0f);
  return plain_nan(broadcast(of.weights[of.slots[row]]));
}

template <class T>
const T* row_of(const std::byte* data, std::int64_t row, std::int64_t stride) {
  return reinterpret_cast<const T*>(data) + row * stride;
}
template <class T>
T* row_of(std::byte* data, std::int64_t row, std::int64_t stride) {
  return reinterpret_cast<T*>(data) + row * stride;
}

// Pieces of rows lie far apart, and the hardware does not foresee them: while one is computed, the
// same columns of a row ahead are fetched. Elements from one to the other; 0 where there is none.
std::int64_t step_ahead(std::int64_t row, std::int64_t rows, std::int64_t stride,
                        std::int64_t rows_ahead = 1) {
  return row + rows_ahead < rows ? rows_ahead * stride : 0;
}
// A row of int8 values is computed faster than its bytes arrive, so a later row is fetched.
constexpr std::int64_t kRowsOfCodesAhead = 4, kLineBytes = 64;

template <class T, class A>
void forward_rows(const ActivationBlock& block, const A& activation) {
  const std::int64_t whole = block.columns / kPair * kPair;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const T* gate = row_of<T>(block.gate, r, block.operand_stride);
    const T* up = A::kIsGated ? row_of<T>(block.up, r, block.operand_stride) : nullptr;
    T* h = row_of<T>(block.h, r, block.h_stride);
    const Floats factor = factor_of(block.row_weights, r);
    const std::int64_t ahead = step_ahead(r, block.rows, block.h_stride);
    for (std::int64_t i = 0; i < whole; i += kPair) {
      __builtin_prefetch(h + i + ahead, 1);
      const Pair g = load_pair(gate + i);
      const Pair u = A::kIsGated ? load_pair(up + i) : Pair{};
      store_pair<false>(h + i, {factor * activation.value(g.first, u.first),
                                factor * activation.value(g.second, u.second)});
    }
    for_lanes(whole, block.columns, [&](std::int64_t i, int n) {
      const Floats u = A::kIsGated ? load(up + i, n) : Floats{};
      store(h + i, factor * activation.value(load(gate + i, n), u), n);
    });
  }
}

// Calls `body(x, codes, scale, count)` for each run of row r that shares a scale. kWrites: body
// writes the int8 values.
template <class T, bool kWrites, class Body>
ANABATIC_INLINE void for_scales(const CodesBlock& block, std::int64_t r, Body&& body) {
  T* x = row_of<T>(block.x, r, block.x_stride);
  std::int8_t* codes = block.codes + r * block.codes_stride;
  BFloat16* scale = block.scales + r * block.scales_stride;
  const std::int64_t ahead = step_ahead(r, block.rows, block.codes_stride, kRowsOfCodesAhead);
  for (std::int64_t i = 0, before = block.columns_before; i < block.columns; before = 0) {
    const std::int64_t left = block.columns - i, most = block.scale_columns - before,
                       count = left < most ? left : most;
    for (std::int64_t line = 0; line < count; line += kLineBytes)
      __builtin_prefetch(codes + i + line + ahead, kWrites);
    body(x + i, codes + i, scale++, count);
    i += count;
  }
}

template <class T>
void dequantize_row(const CodesBlock& block, std::int64_t r) {
  for_scales<T, false>(
      block, r, [](T* x, const std::int8_t* codes, const BFloat16* scale, std::int64_t count) {
        dequantize_block<false>(codes, count, to_float(*scale), x);
      });
}

// One row of a block. kWeighted: with partial sums; kActivates: with h.
template <class T, class A, bool kWeighted, bool kActivates>
ANABATIC_INLINE void gradient_row(const ActivationGradientBlock& block, const A& activation,
                                  std::int64_t r) {
  const T* gate = row_of<T>(block.gate, r, block.operand_stride);
  const T* up = A::kIsGated ? row_of<T>(block.up, r, block.operand_stride) : nullptr;
  const T* dh = row_of<T>(block.dh, r, block.dh_stride);
  T* dgate = row_of<T>(block.dgate, r, block.result_stride);
  T* dup = A::kIsGated ? row_of<T>(block.dup, r, block.result_stride) : nullptr;
  T* h = kActivates ? row_of<T>(block.h, r, block.result_stride) : nullptr;
  const Floats factor = factor_of(block.row_weights, r);
  const std::int64_t operand_ahead = step_ahead(r, block.rows, block.operand_stride),
                     ahead = step_ahead(r, block.rows, block.result_stride);
  for (std::int64_t begin = 0; begin < block.columns; begin += block.segment) {
    const std::int64_t left = block.columns - begin,
                       end = begin + (left < block.segment ? left : block.segment),
                       whole = begin + (end - begin) / kPair * kPair;
    Pair sum{};
    for (std::int64_t i = begin; i < whole; i += kPair) {
      __builtin_prefetch(gate + i + operand_ahead);
      if (A::kIsGated) __builtin_prefetch(up + i + operand_ahead);
      __builtin_prefetch(dgate + i + ahead, 1);
      if (A::kIsGated) __builtin_prefetch(dup + i + ahead, 1);
      if (kActivates) __builtin_prefetch(h + i + ahead, 1);
      const Pair g = load_pair(gate + i), d = load_pair(dh + i);
      const Pair u = A::kIsGated ? load_pair(up + i) : Pair{};
      const GradientAndValue first = activation.gradient(g.first, u.first, factor * d.first),
                             second = activation.gradient(g.second, u.second, factor * d.second);
      store_pair<false>(dgate + i, {first.gradient.gate, second.gradient.gate});
      if (A::kIsGated) store_pair<false>(dup + i, {first.gradient.up, second.gradient.up});
      if (kActivates) store_pair<false>(h + i, {factor * first.value, factor * second.value});
      if (kWeighted) {
        sum.first = madd(d.first, first.value, sum.first);
        sum.second = madd(d.second, second.value, sum.second);
      }
    }
    for_lanes(whole, end, [&](std::int64_t i, int n) {
      const Floats d = load(dh + i, n), u = A::kIsGated ? load(up + i, n) : Floats{};
      const GradientAndValue got = activation.gradient(load(gate + i, n), u, factor * d);
      store(dgate + i, got.gradient.gate, n);
      if (A::kIsGated) store(dup + i, got.gradient.up, n);
      if (kActivates) store(h + i, factor * got.value, n);
      if (kWeighted) sum.first = madd(d, got.value, sum.first);
    });
    if (kWeighted)
      block.partials[r * block.partial_stride + begin / block.segment] =
          sum_lanes(sum.first + sum.second);
  }
}

template <class T, class A, bool kWeighted, bool kActivates>
void gradient_rows(const ActivationGradientBlock& block, const A& activation) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    if (block.gate_codes != nullptr) dequantize_row<T>(*block.gate_codes, r);
    if (block.up_codes != nullptr) dequantize_row<T>(*block.up_codes, r);
    gradient_row<T, A, kWeighted, kActivates>(block, activation, r);
  }
}

// Columns of a row that f16 goes through f32 by, in the L1 cache: a multiple of all segments.
constexpr std::int64_t kWidened = 384;
struct WidenedRow {
  alignas(64) float values[kWidened];

  std::byte* data() { return reinterpret_cast<std::byte*>(values); }
};

// `count` elements of `dtype` from element `first` on, if there are any.
void widen(const std::byte* from, DType dtype, std::int64_t first, std::int64_t count,
           WidenedRow& to) {
  if (from == nullptr) return;
  with_any_float_type(dtype, [&]<class T>(T*) {
    const T* elements = reinterpret_cast<const T*>(from) + first;
    for_lanes(0, count,
              [&](std::int64_t i, int n) { store(to.values + i, load(elements + i, n), n); });
  });
}
void narrow(const WidenedRow& from, std::byte* to, DType dtype, std::int64_t first,
            std::int64_t count) {
  if (to == nullptr) return;
  with_any_float_type(dtype, [&]<class T>(T*) {
    T* elements = reinterpret_cast<T*>(to) + first;
    for_lanes(0, count,
              [&](std::int64_t i, int n) { store(elements + i, load(from.values + i, n), n); });
  });
}

// body(row, its first column, their count) for all pieces of kWidened columns of the rows.
template <class Block, class Body>
void for_pieces(const Block& block, Body&& body) {
  for (std::int64_t r = 0; r < block.rows; ++r)
    for (std::int64_t i = 0; i < block.columns; i += kWidened)
      body(r, i, block.columns - i < kWidened ? block.columns - i : kWidened);
}

RowWeights at_row(const RowWeights& of, std::int64_t row) {
  return {.weights = of.weights, .slots = of.slots == nullptr ? nullptr : of.slots + row};
}

void forward(const ActivationBlock& block);
void gradient(const ActivationGradientBlock& block);

void forward_widened(const ActivationBlock& block) {
  WidenedRow gate, up, h;
  for_pieces(block, [&](std::int64_t r, std::int64_t i, std::int64_t count) {
    const std::int64_t at = r * block.operand_stride + i;
    widen(block.gate, block.dtype, at, count, gate);
    widen(block.up, block.dtype, at, count, up);
    forward({.activation = block.activation,
             .dtype = DType::kFloat32,
             .rows = 1,
             .columns = count,
             .gate = gate.data(),
             .up = block.up != nullptr ? up.data() : nullptr,
             .operand_stride = kWidened,
             .h = h.data(),
             .h_stride = kWidened,
             .row_weights = at_row(block.row_weights, r)});
    narrow(h, block.h, block.dtype, r * block.h_stride + i, count);
  });
}

void gradient_widened(const ActivationGradientBlock& block) {
  WidenedRow gate, up, dh, dgate, dup, h;
  for_pieces(block, [&](std::int64_t r, std::int64_t i, std::int64_t count) {
    const std::int64_t at = r * block.operand_stride + i, to = r * block.result_stride + i;
    widen(block.gate, block.dtype, at, count, gate);
    widen(block.up, block.dtype, at, count, up);
    widen(block.dh, block.gradient_dtype, r * block.dh_stride + i, count, dh);
    gradient({.activation = block.activation,
              .dtype = DType::kFloat32,
              .gradient_dtype = DType::kFloat32,
              .rows = 1,
              .columns = count,
              .dh = dh.data(),
              .dh_stride = kWidened,
              .gate = gate.data(),
              .up = block.up != nullptr ? up.data() : nullptr,
              .gate_codes = nullptr,
              .up_codes = nullptr,
              .operand_stride = kWidened,
              .dgate = dgate.data(),
              .dup = block.dup != nullptr ? dup.data() : nullptr,
              .h = block.h != nullptr ? h.data() : nullptr,
              .result_stride = kWidened,
              .row_weights = at_row(block.row_weights, r),
              .partials = block.partials != nullptr
                              ? block.partials + r * block.partial_stride + i / block.segment
                              : nullptr,
              .segment = block.segment,
              .partial_stride = 0});
    narrow(dgate, block.dgate, block.gradient_dtype, to, count);
    narrow(dup, block.dup, block.gradient_dtype, to, count);
    narrow(h, block.h, block.dtype, to, count);
  });
}

void forward(const ActivationBlock& block) {
  if (block.dtype == DType::kFloat16) return forward_widened(block);
  with_activation(block.activation, [&](const auto& activation) {
    with_float_type(block.dtype, [&]<class T>(T*) { forward_rows<T>(block, activation); });
  });
}

template <class T, class A>
void gradient_of(const ActivationGradientBlock& block, const A& activation) {
  const bool is_weighted = block.partials != nullptr, activates = block.h != nullptr;
  const auto rows =
      is_weighted ? activates ? gradient_rows<T, A, true, true> : gradient_rows<T, A, true, false>
      : activates ? gradient_rows<T, A, false, true>
                  : gradient_rows<T, A, false, false>;
  rows(block, activation);
}

void gradient(const ActivationGradientBlock& block) {
  if (block.dtype == DType::kFloat16 || block.gradient_dtype != block.dtype)
    return gradient_widened(block);
  with_activation(block.activation, [&](const auto& activation) {
    with_float_type(block.dtype, [&]<class T>(T*) { gradient_of<T>(block, activation); });
  });
}

void quantize(const CodesBlock& block) {
  with_float_type(block.dtype, [&]<class T>(T*) {
    for (std::int64_t r = 0; r < block.rows; ++r)
      for_scales<T, true>(block, r,
                          [](const T* x, std::int8_t* codes, BFloat16* scale, std::int64_t count) {
                            *scale = quantize_block(x, count, codes);
                          });
  });
}

}  // namespace

const ActivationStage kActivationStage{
    .forward = forward, .gradient = gradient, .quantize = quantize};

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
