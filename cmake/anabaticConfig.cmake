# SPDX-License-Identifier: Apache-2.0
# find_package(anabatic CONFIG REQUIRED) gives anabatic::anabatic, the shared library. With COMPONENTS static it gives
# anabatic::static, whose users need the development packages of everything that Anabatic is built from.
include(${CMAKE_CURRENT_LIST_DIR}/anabaticTargets.cmake)
if("static" IN_LIST anabatic_FIND_COMPONENTS)
  include(CMakeFindDependencyMacro)
  find_dependency(fmt)
  find_dependency(Threads)
  find_dependency(nlohmann_json)
  find_dependency(yaml-cpp)
  find_dependency(Protobuf)
  find_dependency(ZLIB)
  if(@ANABATIC_HAS_MPI@) # as the archives were built
    find_dependency(MPI COMPONENTS CXX)
  endif()
  find_dependency(PkgConfig)
  pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
  pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
  pkg_check_modules(oniguruma REQUIRED IMPORTED_TARGET oniguruma)
  # It exports regcomp and other POSIX names with structures of its own: the C library's have to be found first. (A plain -lc moves to
  # the end: g++ does that.)
  set_property(TARGET PkgConfig::oniguruma PROPERTY INTERFACE_LINK_LIBRARIES -Wl,-lc ${oniguruma_LINK_LIBRARIES})
  pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
  pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
  include(${CMAKE_CURRENT_LIST_DIR}/anabaticStaticTargets.cmake)
  set(anabatic_static_FOUND TRUE)
endif()
