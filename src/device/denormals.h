// SPDX-License-Identifier: Apache-2.0
// Denormals are zero in everything that computes values, so that a result does not depend on which
// thread computes it and small values cost no microcode.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace anabatic::device {

// For the calling thread while it exists: FTZ and DAZ.
class DenormalsAreZero {
 public:
#if defined(__x86_64__)
  DenormalsAreZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~DenormalsAreZero() { _mm_setcsr(saved_); }
#else
  DenormalsAreZero() {}
  ~DenormalsAreZero() {}
#endif
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

#if defined(__x86_64__)
 private:
  unsigned saved_;
#endif
};

}  // namespace anabatic::device
