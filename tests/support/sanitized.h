// SPDX-License-Identifier: Apache-2.0
// Whether AddressSanitizer or ThreadSanitizer is in this build: they own malloc, hold memory of
// their own, and take many times as long.
#pragma once

namespace anabatic::testing {

// That of the libraries, for objects of tests may be another build's
// (ANABATIC_TEST_OBJECTS). tests/support/main.cpp defines it.
extern const bool kIsSanitized;

}  // namespace anabatic::testing
