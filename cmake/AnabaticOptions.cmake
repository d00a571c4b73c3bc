# SPDX-License-Identifier: Apache-2.0
# Warnings and sanitizers for every target of this project, as one interface library, and the helpers that add targets.

add_library(anabatic_options INTERFACE)
target_compile_features(anabatic_options INTERFACE cxx_std_20)
target_include_directories(
  anabatic_options INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
                             $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
# -Wno-restrict: g++ 12 reports std::string concatenation falsely (GCC bug 105651).
# -ffp-contract=off: a multiply and an add are fused only where the source says so, hence equal bits from every compiler.
target_compile_options(
  anabatic_options INTERFACE $<BUILD_INTERFACE:-Wall;-Wextra;-Wshadow;-Wno-missing-field-initializers;-Wno-restrict;-ffp-contract=off>)
# In a unity build (CMAKE_UNITY_BUILD of the presets) a few sources of a library are one, so names in their anonymous namespaces
# differ. What is included there is no header: a class with a member of an anonymous namespace's type is well.
target_compile_options(anabatic_options
                       INTERFACE $<BUILD_INTERFACE:$<$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>:-Wno-subobject-linkage>>)
if(ANABATIC_WERROR)
  target_compile_options(anabatic_options INTERFACE $<BUILD_INTERFACE:-Werror>)
endif()
if(ANABATIC_SANITIZE)
  target_compile_options(anabatic_options INTERFACE -fsanitize=${ANABATIC_SANITIZE} -fno-omit-frame-pointer
                                                   -fno-sanitize-recover=all ${ANABATIC_SANITIZE_OPTIONS})
  # Tests are there to run the product: their own code goes without checks that double its compilation. What they link still owns malloc.
  if(ANABATIC_SANITIZE MATCHES "address")
    target_compile_options(anabatic_options INTERFACE $<$<BOOL:$<TARGET_PROPERTY:ANABATIC_IS_TEST>>:-fno-sanitize=address,undefined>)
  else()
    target_compile_options(anabatic_options INTERFACE $<$<BOOL:$<TARGET_PROPERTY:ANABATIC_IS_TEST>>:-fno-sanitize=undefined>)
  endif()
  target_compile_definitions(anabatic_options INTERFACE $<$<BOOL:$<TARGET_PROPERTY:ANABATIC_IS_TEST>>:ANABATIC_IS_SANITIZED>)
  target_link_options(anabatic_options INTERFACE -fsanitize=${ANABATIC_SANITIZE})
endif()

# A hundred test programs link the same archives: mold takes 40 % of the time of GNU ld. What is installed is linked by the
# compiler's own linker.
find_program(ANABATIC_MOLD mold)
mark_as_advanced(ANABATIC_MOLD)
if(ANABATIC_MOLD)
  target_link_options(anabatic_options INTERFACE $<$<BOOL:$<TARGET_PROPERTY:ANABATIC_IS_TEST>>:-fuse-ld=mold>)
endif()

# What the shared library is made of: position-independent, and exporting only what include/anabatic marks ANABATIC_API.
function(anabatic_fit_for_sharing target)
  target_compile_options(${target} PRIVATE -fPIC -fvisibility=hidden -fvisibility-inlines-hidden)
endfunction()

# Standard headers take most of a small source's compile time: they are parsed once here, and once more with nlohmann's for the
# libraries that read JSON. Every source still includes what it uses.
function(anabatic_headers target)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled/${target}.cpp CONTENT "// Compiled for its precompiled header alone.\n")
  add_library(${target} OBJECT ${PROJECT_BINARY_DIR}/precompiled/${target}.cpp)
  target_link_libraries(${target} PRIVATE anabatic_options fmt::fmt Threads::Threads)
  anabatic_fit_for_sharing(${target})
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  target_precompile_headers(
    ${target}
    PRIVATE
    <algorithm>
    <filesystem>
    <functional>
    <map>
    <memory>
    <optional>
    <set>
    <span>
    <string>
    <string_view>
    <vector>
    <fmt/core.h>
    ${ARGN})
endfunction()

# anabatic_library(NAME SOURCES a.cpp b.cpp DEPENDS base tensor LIBRARIES fmt::fmt)
# One static library a folder; DEPENDS names the folders that it may include (tools/check_layers holds the same table).
function(anabatic_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_library(anabatic_${name} STATIC ${ARG_SOURCES})
  anabatic_fit_for_sharing(anabatic_${name})
  target_link_libraries(anabatic_${name} PUBLIC anabatic_options ${ARG_LIBRARIES})
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_link_libraries(anabatic_${name} PUBLIC anabatic_${dependency})
  endforeach()
  if(nlohmann_json::nlohmann_json IN_LIST ARG_LIBRARIES)
    target_precompile_headers(anabatic_${name} REUSE_FROM anabatic_json_headers)
  elseif(NOT name STREQUAL "kernels") # its sources differ in flags
    target_precompile_headers(anabatic_${name} REUSE_FROM anabatic_std_headers)
  endif()
  if(NOT name MATCHES "^test_")
    install(TARGETS anabatic_${name} EXPORT anabaticStaticTargets COMPONENT static)
  endif()
endfunction()

# With sanitizers the code of tests is compiled as without (anabatic_options), so a build can link those of a finished build without.
set(ANABATIC_TEST_OBJECTS "" CACHE PATH "A finished build of the same sources: what it compiled of tests is linked, not compiled again")

# The sources of test NAME in `variable`, or their objects in ANABATIC_TEST_OBJECTS, but for sources that differ between builds.
function(anabatic_test_sources name variable)
  set(differs "ANABATIC_IS_SANITIZED|ANABATIC_BINARY_DIR|counted_allocations[.]h")
  file(RELATIVE_PATH folder ${PROJECT_BINARY_DIR} ${CMAKE_CURRENT_BINARY_DIR})
  set(sources "")
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} found REGEX "${differs}" LIMIT_COUNT 1)
    set(object "${ANABATIC_TEST_OBJECTS}/${folder}/CMakeFiles/${name}.dir/${source}.o")
    if(found OR source MATCHES "[.][.]/")
      list(APPEND sources ${source})
    elseif(${CMAKE_CURRENT_SOURCE_DIR}/${source} IS_NEWER_THAN ${object})
      message(FATAL_ERROR "ANABATIC_TEST_OBJECTS: expected an object newer than ${source}, found none or an older one: ${object}")
    else()
      list(APPEND sources ${object})
    endif()
  endforeach()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# anabatic_test(NAME LABEL unit SOURCES a_test.cpp DEPENDS io LIBRARIES x): a GoogleTest binary with one CTest entry, labelled with its folder.
# SLOW has tests of it, as --gtest_filter has them, that are an entry of their own, labelled slow.
function(anabatic_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT;SHARDS;SLOW" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  if(ANABATIC_TEST_OBJECTS)
    anabatic_test_sources(${name} ARG_SOURCES ${ARG_SOURCES})
  endif()
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES ANABATIC_IS_TEST ON LINKER_LANGUAGE CXX)
  target_link_libraries(${name} PRIVATE anabatic_options ${ARG_LIBRARIES} anabatic_test_main GTest::gmock)
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_link_libraries(${name} PRIVATE anabatic_${dependency})
  endforeach()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  # GoogleTest's headers are parsed once; the optimizer spends its time on the library, not on tests.
  target_precompile_headers(${name} REUSE_FROM anabatic_test_headers)
  # At -O1 g++ 12 reports std::string and replaced operators new falsely.
  target_compile_options(${name} PRIVATE -O1 -Wno-array-bounds -Wno-mismatched-new-delete -Wno-stringop-overflow)
  target_compile_definitions(${name} PRIVATE ANABATIC_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             ANABATIC_BINARY_DIR="${PROJECT_BINARY_DIR}")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  # Tests that apply ANABATIC_TEST_CONFIG.
  if("test_runs" IN_LIST ARG_DEPENDS OR "test_binary" IN_LIST ARG_DEPENDS)
    list(APPEND ARG_LABEL configured)
  endif()
  if(NOT ARG_SHARDS)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
    if(ARG_SLOW)
      set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=-${ARG_SLOW}")
      add_test(NAME ${name}_slow COMMAND ${name} --gtest_filter=${ARG_SLOW})
      set_tests_properties(${name}_slow PROPERTIES LABELS "${ARG_LABEL};slow" TIMEOUT 600)
    endif()
    return()
  endif()
  # Parts of a long test, for several cores.
  foreach(shard RANGE 1 ${ARG_SHARDS})
    math(EXPR index "${shard} - 1")
    add_test(NAME ${name}_${shard} COMMAND ${name})
    set_tests_properties(
      ${name}_${shard} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT
                                  "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()
