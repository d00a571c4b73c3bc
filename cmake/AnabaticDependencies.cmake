# SPDX-License-Identifier: Apache-2.0
# Everything comes from the distribution; nothing is downloaded at configure time.

find_package(fmt REQUIRED)
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Protobuf REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(oniguruma REQUIRED IMPORTED_TARGET oniguruma)
# It exports regcomp and other POSIX names with structures of its own: the C library's have to be found first. (A plain -lc moves to
# the end: g++ does that.)
set_property(TARGET PkgConfig::oniguruma PROPERTY INTERFACE_LINK_LIBRARIES -Wl,-lc ${oniguruma_LINK_LIBRARIES})
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)

set(ANABATIC_HAS_TESTS ${ANABATIC_TESTS})
if(ANABATIC_TESTS STREQUAL "AUTO")
  find_package(GTest QUIET)
  set(ANABATIC_HAS_TESTS ${GTest_FOUND})
  if(NOT GTest_FOUND)
    message(STATUS "Tests: off (no GoogleTest; -DANABATIC_TESTS=ON makes that an error)")
  endif()
endif()
if(ANABATIC_HAS_TESTS)
  find_package(GTest REQUIRED)
  # Header-only; without it no kernel row is emulated.
  find_path(ANABATIC_SIMDE simde/x86/avx512/dpbf16.h)
endif()
