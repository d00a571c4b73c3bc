// SPDX-License-Identifier: Apache-2.0
// Sums whose bits depend on nothing but their terms.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace anabatic::comm {

// The most terms of a sum.
inline constexpr std::int64_t kMaxTerms = 1 << 20;

// to[i] = the sum of term[i] over the terms, by a balanced binary tree: n terms are split at the
// largest power of two below n, and each part is summed alike. f32 adds in f32, f64 in f64; bf16
// adds in f32 and rounds once, to nearest even. One term is copied. `bytes` of each term; `to` may
// be one of them.
void sum_terms(std::span<const std::byte* const> terms, std::int64_t bytes, DType dtype,
               std::byte* to);

}  // namespace anabatic::comm
