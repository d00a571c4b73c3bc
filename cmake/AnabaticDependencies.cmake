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
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)

if(ANABATIC_TESTS)
  find_package(GTest REQUIRED)
  # Header-only; without it no kernel row is emulated.
  find_path(ANABATIC_SIMDE simde/x86/avx512/dpbf16.h)
endif()
