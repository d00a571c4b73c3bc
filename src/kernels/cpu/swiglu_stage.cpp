// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/swiglu_stage.h"

#include "kernels/cpu/codes_math.h"
#include "kernels/cpu/swiglu_math.h"

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
// A row of codes takes less time than its bytes to come.
constexpr std::int64_t kRowsOfCodesAhead = 4, kLineBytes = 64;

template <class T>
void forward_rows(const SwigluBlock& block) {
  const std::int64_t whole = block.columns / kPair * kPair;
  for (std::int64_t r = 0; r < block.rows; ++r) {
    const T* gate = row_of<T>(block.gate, r, block.operand_stride);
    const T* up = row_of<T>(block.up, r, block.operand_stride);
    T* h = row_of<T>(block.h, r, block.h_stride);
    const Floats factor = factor_of(block.row_weights, r);
    const std::int64_t ahead = step_ahead(r, block.rows, block.h_stride);
    for (std::int64_t i = 0; i < whole; i += kPair) {
      __builtin_prefetch(h + i + ahead, 1);
      const Pair g = load_pair(gate + i), u = load_pair(up + i);
      store_pair<false>(
          h + i, {factor * swiglu_of(g.first, u.first), factor * swiglu_of(g.second, u.second)});
    }
    for_lanes(whole, block.columns, [&](std::int64_t i, int n) {
      store(h + i, factor * swiglu_of(load(gate + i, n), load(up + i, n)), n);
    });
  }
}

// body(x, codes, scale, count) for what shares a scale in row r. kWrites: the codes.
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

struct WithProduct {
  SwigluGradient gradient;
  Floats product;  // swiglu(gate, up)
};
ANABATIC_INLINE WithProduct with_product_of(Floats gate, Floats up, Floats dy) {
  const Decay d = decay(gate);
  return {swiglu_gradient_of(gate, up, dy, d), times_sigmoid(gate, d, gate * up)};
}

// One row of a block. kWeighted: with partial sums; kActivates: with h.
template <class T, bool kWeighted, bool kActivates>
ANABATIC_INLINE void gradient_row(const SwigluGradientBlock& block, std::int64_t r) {
  const T* gate = row_of<T>(block.gate, r, block.operand_stride);
  const T* up = row_of<T>(block.up, r, block.operand_stride);
  const T* dh = row_of<T>(block.dh, r, block.dh_stride);
  T* dgate = row_of<T>(block.dgate, r, block.result_stride);
  T* dup = row_of<T>(block.dup, r, block.result_stride);
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
      __builtin_prefetch(up + i + operand_ahead);
      __builtin_prefetch(dgate + i + ahead, 1);
      __builtin_prefetch(dup + i + ahead, 1);
      if (kActivates) __builtin_prefetch(h + i + ahead, 1);
      const Pair g = load_pair(gate + i), u = load_pair(up + i), d = load_pair(dh + i);
      const WithProduct first = with_product_of(g.first, u.first, factor * d.first),
                        second = with_product_of(g.second, u.second, factor * d.second);
      store_pair<false>(dgate + i, {first.gradient.gate, second.gradient.gate});
      store_pair<false>(dup + i, {first.gradient.up, second.gradient.up});
      if (kActivates) store_pair<false>(h + i, {factor * first.product, factor * second.product});
      if (kWeighted) {
        sum.first = madd(d.first, first.product, sum.first);
        sum.second = madd(d.second, second.product, sum.second);
      }
    }
    for_lanes(whole, end, [&](std::int64_t i, int n) {
      const Floats d = load(dh + i, n);
      const WithProduct value = with_product_of(load(gate + i, n), load(up + i, n), factor * d);
      store(dgate + i, value.gradient.gate, n);
      store(dup + i, value.gradient.up, n);
      if (kActivates) store(h + i, factor * value.product, n);
      if (kWeighted) sum.first = madd(d, value.product, sum.first);
    });
    if (kWeighted)
      block.partials[r * block.partial_stride + begin / block.segment] =
          sum_lanes(sum.first + sum.second);
  }
}

template <class T, bool kWeighted, bool kActivates>
void gradient_rows(const SwigluGradientBlock& block) {
  for (std::int64_t r = 0; r < block.rows; ++r) {
    if (block.gate_codes != nullptr) {
      dequantize_row<T>(*block.gate_codes, r);
      dequantize_row<T>(*block.up_codes, r);
    }
    gradient_row<T, kWeighted, kActivates>(block, r);
  }
}

void forward(const SwigluBlock& block) {
  with_float_type(block.dtype, [&]<class T>(T*) { forward_rows<T>(block); });
}

void gradient(const SwigluGradientBlock& block) {
  const bool is_weighted = block.partials != nullptr, activates = block.h != nullptr;
  with_float_type(block.dtype, [&]<class T>(T*) {
    const auto rows = is_weighted
                          ? activates ? gradient_rows<T, true, true> : gradient_rows<T, true, false>
                      : activates ? gradient_rows<T, false, true>
                                  : gradient_rows<T, false, false>;
    rows(block);
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

const SwigluStage kSwigluStage{.forward = forward, .gradient = gradient, .quantize = quantize};

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
