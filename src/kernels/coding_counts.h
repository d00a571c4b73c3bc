// SPDX-License-Identifier: Apache-2.0
// What int8 products count of the activations, or gradients of them, that they quantise by rows.
// Sums of integers and a maximum: threads and cuts of rows give equal counts.
#pragma once
#include <cstdint>

namespace anabatic::kernels {

struct CodingCounts {
  std::int64_t elements = 0;   // that are finite and not 0
  std::int64_t zeroed = 0;     // of these, with the int8 value 0
  std::int64_t blocks = 0;     // of up to 128 elements
  std::int64_t fallbacks = 0;  // of these, with second values
  std::uint32_t largest = 0;   // the bits of the largest magnitude as f32; beyond infinity: NaN

  void add(const CodingCounts& other) {
    elements += other.elements;
    zeroed += other.zeroed;
    blocks += other.blocks;
    fallbacks += other.fallbacks;
    if (other.largest > largest) largest = other.largest;
  }
};

// The same while other threads add too.
inline __attribute__((always_inline)) void add_shared(CodingCounts& to, const CodingCounts& part) {
  __atomic_fetch_add(&to.elements, part.elements, __ATOMIC_RELAXED);
  __atomic_fetch_add(&to.zeroed, part.zeroed, __ATOMIC_RELAXED);
  __atomic_fetch_add(&to.blocks, part.blocks, __ATOMIC_RELAXED);
  __atomic_fetch_add(&to.fallbacks, part.fallbacks, __ATOMIC_RELAXED);
  std::uint32_t largest = __atomic_load_n(&to.largest, __ATOMIC_RELAXED);
  while (part.largest > largest &&
         !__atomic_compare_exchange_n(&to.largest, &largest, part.largest, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
}

}  // namespace anabatic::kernels
