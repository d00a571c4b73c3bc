// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/head/head_stage.h"

#include "base/rounding.h"
#include "kernels/cpu/call.h"
#include "kernels/cpu/head/head_codes.h"
#include "kernels/cpu/pack_panels.h"
#include "kernels/cpu/vector_math.h"

namespace anabatic::kernels::cpu::ANABATIC_ISA {
namespace {

template <class T>
const T* at(const std::byte* data) {
  return reinterpret_cast<const T*>(data);
}
template <class T>
T* row_of(const HeadCopies& copies, std::int64_t row) {
  return reinterpret_cast<T*>(copies.data) + row * copies.stride;
}

float copy_row(const std::byte* x, const std::byte* weight, DType dtype, std::int64_t width,
               const HeadCopies& copies, std::int64_t to) {
  float product = 0;
  with_any_float_type(dtype, [&]<class X>(X*) {
    with_float_type(copies.dtype, [&]<class C>(C*) {
      C* copy = row_of<C>(copies, to);
      product = static_cast<float>(sum_of_row(width, [&](std::int64_t i, int n, Floats before) {
        const Floats value = load(at<X>(x) + i, n);
        store(copy + i, value, n);
        return madd(value, load(at<X>(weight) + i, n), before);
      }));
    });
  });
  return product;
}

// r[i][j] becomes r[j][i]: blocks of 1, 2, 4, ... are exchanged across the diagonal.
template <int kHalf>
ANABATIC_INLINE void turn(Floats (&r)[kLanes]) {
  Ints low, high;
  for (int j = 0; j < kLanes; ++j) {
    const bool is_second = (j & kHalf) != 0;
    low[j] = is_second ? kLanes + j - kHalf : j;
    high[j] = is_second ? kLanes + j : j + kHalf;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kHalf) != 0) continue;
    const Floats a = r[i], b = r[i + kHalf];
    r[i] = __builtin_shuffle(a, b, low);
    r[i + kHalf] = __builtin_shuffle(a, b, high);
  }
  if constexpr (2 * kHalf < kLanes) turn<2 * kHalf>(r);
}

// Columns [0, columns) of kLanes rows, `count` of them there, to `turned`.
template <class E>
void turn_rows(const HeadLogits& step, std::int64_t first, std::int64_t count, E* turned) {
  for_lanes(0, step.columns, [&](std::int64_t j, int n) {
    Floats r[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
      r[i] = i < count ? load(step.logits + (first + i) * step.stride + j, n) : Floats{};
    turn<1>(r);
    if (n == kLanes) {
#pragma GCC unroll 16
      for (int k = 0; k < kLanes; ++k) store(turned + (j + k) * step.turned_stride + first, r[k]);
    } else {
      for (int k = 0; k < n; ++k) store(turned + (j + k) * step.turned_stride + first, r[k]);
    }
  });
}

// The same of what `rounded` holds. A word has two columns of a row.
void turn_rounded(const HeadLogits& step, std::int64_t first, std::int64_t count) {
  auto* turned = reinterpret_cast<BFloat16*>(step.turned) + first;
  for (std::int64_t j = 0; j < step.columns; j += 2 * kLanes) {
    Floats r[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
      r[i] = i < count ? load(reinterpret_cast<const float*>(step.rounded +
                                                             (first + i) * step.rounded_stride + j))
                       : Floats{};
    turn<1>(r);
    BFloat16* to = turned + j * step.turned_stride;
    if (step.columns - j >= 2 * kLanes) {
#pragma GCC unroll 16
      for (int k = 0; k < kLanes; ++k, to += 2 * step.turned_stride) {
        store_bits(to, reinterpret_cast<Words>(r[k]), kLanes);
        store_bits(to + step.turned_stride, reinterpret_cast<Words>(r[k]) >> 16, kLanes);
      }
    } else {
      for (int k = 0; k < step.columns - j; ++k, to += step.turned_stride)
        store_bits(to, reinterpret_cast<Words>(r[k / 2]) >> (k % 2 * 16), kLanes);
    }
  }
}

// Replaces the logits, or goes to `rounded`.
template <bool kRounds>
void exponentials_of_row(const HeadLogits& step, std::int64_t row) {
  float* x = step.logits + row * step.stride;
  BFloat16* rounded = kRounds ? step.rounded + row * step.rounded_stride : nullptr;
  const auto put = [&](std::int64_t i, Floats e, int n) __attribute__((always_inline)) {
    if constexpr (kRounds)
      store(rounded + i, e, n);
    else
      store(x + i, e, n);
  };
  const float shift = step.shift[row];
  const std::int64_t whole = step.columns / kLanes * kLanes;
  Floats sum = sum_over_lanes(whole, [&](std::int64_t i, int, Floats before) {
    const Floats e = exp(load(x + i) - shift);
    put(i, e, kLanes);
    return before + e;
  });
  const auto rest = static_cast<int>(step.columns - whole);
  if (rest > 0) {
    Floats e = exp(load(x + whole, rest) - shift);
    for (int i = rest; i < kLanes; ++i) e[i] = 0;
    put(whole, e, rest);
    sum += e;
  }
  step.sums[row] += static_cast<double>(sum_lanes(sum));
}

// To `rounded`, and to u8 values with a scale for each block.
void coded_exponentials_of_row(const HeadLogits& step, std::int64_t row) {
  const float* x = step.logits + row * step.stride;
  BFloat16* rounded = step.rounded + row * step.rounded_stride;
  const float shift = step.shift[row];
  Floats sum{};
  for (std::int64_t b = 0; b * kInt8Block < step.columns; ++b) {
    const std::int64_t column = b * kInt8Block, left = step.columns - column;
    Floats e[kBlockVectors];
    const auto exponential = [&](std::int64_t i, int n) __attribute__((always_inline)) {
      Floats value = exp(load(x + column + i, n) - shift);
      for (int lane = n; lane < kLanes; ++lane) value[lane] = 0;
      store(rounded + column + i, value, n);
      sum += value;
      return value;
    };
    if (left >= kInt8Block) {
#pragma GCC unroll 32
      for (int v = 0; v < kBlockVectors; ++v) e[v] = exponential(v * kLanes, kLanes);
    } else {
      for (Floats& value : e) value = Floats{};
      for_lanes(0, left, [&](std::int64_t i, int n) { e[i / kLanes] = exponential(i, n); });
    }
    step.coded->scales[row * step.coded->scale_stride + b] =
        code_unsigned_block(e, step.coded->codes + row * step.coded->line_stride + column);
  }
  step.sums[row] += static_cast<double>(sum_lanes(sum));
}

// Prefetches the part of the next data that belongs to row `row`.
ANABATIC_INLINE void fetch_ahead(const HeadLogits& step, std::int64_t row) {
  constexpr int kNextCache = 2;
  const std::int64_t part = ceil_div(ceil_div(step.ahead_bytes, 64), step.rows) * 64;
  for (std::int64_t at = row * part; at < (row + 1) * part && at < step.ahead_bytes; at += 64)
    __builtin_prefetch(step.ahead + at, 0, kNextCache);
}

void exponentials(const HeadLogits& step) {
  for (std::int64_t first = 0; first < step.rows; first += kLanes) {
    const std::int64_t count = step.rows - first < kLanes ? step.rows - first : kLanes;
    for (std::int64_t row = first; row < first + count; ++row) {
      fetch_ahead(step, row);
      step.coded != nullptr     ? coded_exponentials_of_row(step, row)
      : step.rounded != nullptr ? exponentials_of_row<true>(step, row)
                                : exponentials_of_row<false>(step, row);
    }
    if (step.turned == nullptr) continue;
    if (step.rounded != nullptr)
      turn_rounded(step, first, count);
    else
      with_float_type(step.turned_dtype, [&]<class E>(E*) {
        turn_rows(step, first, count, reinterpret_cast<E*>(step.turned));
      });
  }
}

void largest(const HeadLogits& step, float* of_row) {
  for (std::int64_t row = 0; row < step.rows; ++row) {
    const float* x = step.logits + row * step.stride;
    float most = of_row[row];
    for (std::int64_t j = 0; j < step.columns; ++j) most = x[j] > most ? x[j] : most;
    of_row[row] = most;
  }
}

void input_gradient(const HeadGradient& row, const std::byte* label_weight, DType dtype,
                    std::int64_t width) {
  with_any_float_type(dtype, [&]<class T>(T*) {
    with_any_float_type(row.dx_dtype, [&]<class D>(D*) {
      D* dx = reinterpret_cast<D*>(row.dx);
      for_lanes(0, width, [&](std::int64_t i, int n) {
        const Floats of_label = row.label_factor * load(at<T>(label_weight) + i, n);
        Floats sums = load(row.sums + i, n);
        if (row.more_sums != nullptr) sums = sums + load(row.more_sums + i, n);
        const Floats gradient = row.factor * sums - of_label;
        store(dx + i, row.accumulate ? load(dx + i, n) + gradient : gradient, n);
      });
    });
  });
}

void code_probabilities(const BFloat16* exponentials, std::int64_t stride, const float* factors,
                        std::int64_t count, std::int64_t depth, const Int8Lines& to) {
  for (std::int64_t line = 0; line < count; ++line, exponentials += stride)
    for (std::int64_t b = 0; b * kInt8Block < depth; ++b) {
      const std::int64_t k = b * kInt8Block, left = depth - k;
      Floats p[kBlockVectors];
      const auto probability = [&](std::int64_t i, int n) __attribute__((always_inline)) {
        return load(exponentials + k + i, n) * load(factors + k + i, n);
      };
      if (left >= kInt8Block) {
#pragma GCC unroll 32
        for (int v = 0; v < kBlockVectors; ++v) p[v] = probability(v * kLanes, kLanes);
      } else {
        for (Floats& value : p) value = Floats{};
        for_lanes(0, left, [&](std::int64_t i, int n) { p[i / kLanes] = probability(i, n); });
      }
      to.scales[line * to.scale_stride + b] =
          code_unsigned_block(p, to.codes + line * to.line_stride + k);
    }
}

void subtract_row(float* c, const BFloat16* row, float factor, std::int64_t width) {
  for_lanes(0, width, [&](std::int64_t i, int n) {
    store(c + i, madd(broadcast(-factor), load(row + i, n), load(c + i, n)), n);
  });
}

void scale_row(const HeadCopies& copies, std::int64_t at_row, std::int64_t width, float factor) {
  with_float_type(copies.dtype, [&]<class C>(C*) {
    C* row = row_of<C>(copies, at_row);
    for_lanes(0, width,
              [&](std::int64_t i, int n) { store(row + i, factor * load(row + i, n), n); });
  });
}

// Rows of f16 become those of f32 panels some columns at a time: body(f32 rows, kWidenedColumns
// apart, their first column, their columns).
constexpr std::int64_t kWidenedColumns = 256;
template <class Body>
void for_widened(const std::byte* rows, std::int64_t stride, std::int64_t count, std::int64_t width,
                 Body&& body) {
  alignas(64) float widened[kPanelColumns * kWidenedColumns];
  for (std::int64_t k = 0; k < width; k += kWidenedColumns) {
    const std::int64_t columns = width - k < kWidenedColumns ? width - k : kWidenedColumns;
    for (std::int64_t r = 0; r < count; ++r)
      for_lanes(0, columns, [&](std::int64_t i, int n) {
        store(widened + r * kWidenedColumns + i, load(at<Float16>(rows) + r * stride + k + i, n),
              n);
      });
    body(widened, k, columns);
  }
}

void pack_rows_as_columns(std::byte* panel, const std::byte* rows, DType dtype, std::int64_t stride,
                          std::int64_t count, std::int64_t width) {
  if (dtype == DType::kFloat16)
    return for_widened(rows, stride, count, width,
                       [&](const float* some, std::int64_t k, std::int64_t columns) {
                         pack_panel(reinterpret_cast<float*>(panel) + k * kPanelColumns, some,
                                    kWidenedColumns, count, columns);
                       });
  with_float_type(dtype, [&]<class T>(T*) {
    pack_panel(reinterpret_cast<T*>(panel), at<T>(rows), stride, count, width);
  });
}

void pack_rows_as_depth(std::byte* panels, std::int64_t panel_elements, const std::byte* rows,
                        DType dtype, std::int64_t stride, std::int64_t begin, std::int64_t end,
                        std::int64_t width) {
  if (dtype == DType::kFloat16)
    return for_widened(rows, stride, end - begin, width,
                       [&](const float* some, std::int64_t k, std::int64_t columns) {
                         pack_depth<false>(
                             reinterpret_cast<float*>(panels) + k / kPanelColumns * panel_elements,
                             panel_elements, columns, some, kWidenedColumns, begin, end);
                       });
  with_float_type(dtype, [&]<class T>(T*) {
    pack_depth<false>(reinterpret_cast<T*>(panels), panel_elements, width, at<T>(rows), stride,
                      begin, end);
  });
}

}  // namespace

extern const HeadStage kHeadStage{.copy_row = copy_row,
                                  .exponentials = exponentials,
                                  .largest = largest,
                                  .input_gradient = input_gradient,
                                  .pack_columns = pack_rows_as_columns,
                                  .pack_depth = pack_rows_as_depth,
                                  .code_probabilities = code_probabilities,
                                  .subtract_row = subtract_row,
                                  .scale_row = scale_row};

}  // namespace anabatic::kernels::cpu::ANABATIC_ISA
