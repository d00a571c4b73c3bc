// SPDX-License-Identifier: Apache-2.0
#include "comm/sum.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace anabatic::comm {
namespace {

// Elements that are summed at a time: partial sums of all levels stay in the first cache.
constexpr std::int64_t kBlock = 256;
constexpr int kLevels = 21;  // of a tree of kMaxTerms leaves

void load(const float* from, std::int64_t count, float* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}
void load(const double* from, std::int64_t count, double* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(double));
}
void load(const BFloat16* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}
void store(const float* from, std::int64_t count, float* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}
void store(const double* from, std::int64_t count, double* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(double));
}
void store(const float* from, std::int64_t count, BFloat16* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = to_bfloat16(from[i]);
}

// The type in which terms are added.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// `to` may be one of the terms.
template <class T>
void add(const T* left, const T* right, std::int64_t count, T* to) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) to[i] = left[i] + right[i];
}

// Partial sums of whole trees, the largest first, as a binary counter counts: two of one size
// become one. What is left at the end is joined from the smallest up.
template <class T>
void sum_block(std::span<const std::byte* const> terms, std::int64_t first, std::int64_t count,
               T* to) {
  alignas(64) Sum<T> partial[kLevels + 1][kBlock];
  int depth = 0;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    load(reinterpret_cast<const T*>(terms[i]) + first, count, partial[depth++]);
    for (std::size_t joined = i + 1; joined % 2 == 0; joined /= 2, --depth)
      add(partial[depth - 2], partial[depth - 1], count, partial[depth - 2]);
  }
  for (; depth > 1; --depth) add(partial[depth - 2], partial[depth - 1], count, partial[depth - 2]);
  store(partial[0], count, to + first);
}

template <class T>
void sum_all(std::span<const std::byte* const> terms, std::int64_t count, std::byte* to) {
  T* sums = reinterpret_cast<T*>(to);
  for (std::int64_t first = 0; first < count; first += kBlock)
    sum_block(terms, first, std::min(kBlock, count - first), sums);
}

}  // namespace

void sum_terms(std::span<const std::byte* const> terms, std::int64_t bytes, DType dtype,
               std::byte* to) {
  ANABATIC_CHECK(!terms.empty() && static_cast<std::int64_t>(terms.size()) <= kMaxTerms,
                 "[sum] {} terms", terms.size());
  if (terms.size() == 1) {
    if (terms[0] != to) std::memcpy(to, terms[0], static_cast<std::size_t>(bytes));
    return;
  }
  const std::int64_t count = bytes / size_bytes(dtype);
  if (dtype == DType::kBFloat16) return sum_all<BFloat16>(terms, count, to);
  if (dtype == DType::kFloat64) return sum_all<double>(terms, count, to);
  ANABATIC_CHECK(dtype == DType::kFloat32, "[sum] terms of {}", to_string(dtype));
  if (terms.size() != 2) return sum_all<float>(terms, count, to);
  add(reinterpret_cast<const float*>(terms[0]), reinterpret_cast<const float*>(terms[1]), count,
      reinterpret_cast<float*>(to));
}

}  // namespace anabatic::comm
