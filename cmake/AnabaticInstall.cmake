# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: the binary, the public headers, the libraries and anabaticConfig.cmake, which gives anabatic::anabatic.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

add_library(anabatic_api INTERFACE)
set_target_properties(anabatic_api PROPERTIES EXPORT_NAME anabatic)
target_link_libraries(anabatic_api INTERFACE anabatic_train)
target_include_directories(anabatic_api INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
add_library(anabatic::anabatic ALIAS anabatic_api)

set(config_directory ${CMAKE_INSTALL_LIBDIR}/cmake/anabatic)
install(TARGETS anabatic_api anabatic_options EXPORT anabaticTargets)
install(TARGETS anabatic)
install(DIRECTORY include/anabatic DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT anabaticTargets NAMESPACE anabatic:: DESTINATION ${config_directory})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/anabaticConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/anabaticConfig.cmake ${PROJECT_BINARY_DIR}/anabaticConfigVersion.cmake DESTINATION ${config_directory})
