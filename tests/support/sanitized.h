// SPDX-License-Identifier: Apache-2.0
// Whether AddressSanitizer or ThreadSanitizer is in this build: they own malloc, hold memory of
// their own, and take many times as long.
#pragma once

namespace anabatic::testing {

#ifdef ANABATIC_IS_SANITIZED
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

}  // namespace anabatic::testing
