// SPDX-License-Identifier: Apache-2.0
// Checks that throw the public errors. Messages are fmt format strings; operands are evaluated only
// on failure.
#pragma once
#include <fmt/core.h>

#include "anabatic/error.h"

namespace anabatic {

[[noreturn]] void throw_internal_error(const char* condition, const char* file, int line,
                                       const std::string& message);

}  // namespace anabatic

// An invariant of our code. ANABATIC_CHECK(n == m, "[liveness] {} values, {} intervals", n, m)
#define ANABATIC_CHECK(condition, ...)                                 \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::anabatic::throw_internal_error(#condition, __FILE__, __LINE__, \
                                       ::fmt::format(__VA_ARGS__));    \
  } while (false)

// A requirement on the caller. ANABATIC_REQUIRE(ndim == 2, "[linear] expected a 2-D weight, got
// {}-D", ndim)
#define ANABATIC_REQUIRE(condition, ...)                             \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      throw ::anabatic::InvalidArgument(::fmt::format(__VA_ARGS__)); \
  } while (false)

// As ANABATIC_CHECK, for hot loops: only in builds without NDEBUG.
#ifdef NDEBUG
#define ANABATIC_DCHECK(condition, ...) ((void)0)
#else
#define ANABATIC_DCHECK(condition, ...) ANABATIC_CHECK(condition, __VA_ARGS__)
#endif
