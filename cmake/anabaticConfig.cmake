# SPDX-License-Identifier: Apache-2.0
# find_package(anabatic CONFIG REQUIRED) gives the target anabatic::anabatic.
include(CMakeFindDependencyMacro)
find_dependency(fmt)
find_dependency(Threads)
find_dependency(nlohmann_json)
find_dependency(yaml-cpp)
find_dependency(Protobuf)
find_dependency(PkgConfig)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
include(${CMAKE_CURRENT_LIST_DIR}/anabaticTargets.cmake)
