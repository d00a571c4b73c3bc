# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: the binary, the public headers, libraries, and anabaticConfig.cmake. It gives anabatic::anabatic, the shared
# library, which needs nothing else to compile and link against; and with COMPONENTS static anabatic::static, the archives.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(include_directories $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set(config_directory ${CMAKE_INSTALL_LIBDIR}/cmake/anabatic)

add_library(anabatic_api INTERFACE)
set_target_properties(anabatic_api PROPERTIES EXPORT_NAME static)
target_link_libraries(anabatic_api INTERFACE anabatic_cli anabatic_layer)
target_include_directories(anabatic_api INTERFACE ${include_directories})
add_library(anabatic::static ALIAS anabatic_api)
install(TARGETS anabatic_api anabatic_options EXPORT anabaticStaticTargets COMPONENT static)
install(EXPORT anabaticStaticTargets NAMESPACE anabatic:: DESTINATION ${config_directory} COMPONENT static)

# A sanitizer's runtime belongs to a program, not to a library. The Python module's tests load it before Python (tools/test.sh).
if(NOT ANABATIC_SANITIZE OR ANABATIC_HAS_PYTHON_PACKAGE)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled/shared.cpp CONTENT "// The shared library is made of archives alone.\n")
  add_library(anabatic_shared SHARED ${PROJECT_BINARY_DIR}/precompiled/shared.cpp)
  set_target_properties(anabatic_shared PROPERTIES OUTPUT_NAME anabatic EXPORT_NAME anabatic)
  if(NOT SKBUILD) # a wheel has no links
    set_target_properties(anabatic_shared PROPERTIES VERSION ${PROJECT_VERSION}
                                                     SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  endif()
  target_link_libraries(anabatic_shared PRIVATE anabatic_cli anabatic_layer)
  # Nothing in it calls the API, which is in these.
  set_target_properties(anabatic_shared PROPERTIES LINK_LIBRARY_OVERRIDE "WHOLE_ARCHIVE,anabatic_train,anabatic_cli,anabatic_layer")
  target_link_options(anabatic_shared PRIVATE -Wl,-z,defs -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
  set_target_properties(anabatic_shared PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  target_include_directories(anabatic_shared INTERFACE ${include_directories})
  add_library(anabatic::anabatic ALIAS anabatic_shared)
  install(TARGETS anabatic_shared EXPORT anabaticTargets LIBRARY COMPONENT library)
  install(EXPORT anabaticTargets NAMESPACE anabatic:: DESTINATION ${config_directory} COMPONENT library)
endif()

install(TARGETS anabatic RUNTIME COMPONENT program)
install(DIRECTORY include/anabatic DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/anabaticConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/anabaticConfig.cmake ${PROJECT_BINARY_DIR}/anabaticConfig.cmake @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/anabaticConfig.cmake ${PROJECT_BINARY_DIR}/anabaticConfigVersion.cmake DESTINATION ${config_directory}
        COMPONENT library)
