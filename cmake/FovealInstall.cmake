# `cmake --install`: library, headers (with the dlpack.h that they include), command, and the files
# by which CMake and pkg-config find them.

include(CMakePackageConfigHelpers)

set(foveal_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/foveal")
install(TARGETS foveal EXPORT foveal-targets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/foveal" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES "${FOVEAL_DLPACK_INCLUDE_DIR}/dlpack/dlpack.h"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dlpack")
if(TARGET foveal_cli)
  install(TARGETS foveal_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

install(EXPORT foveal-targets NAMESPACE foveal:: DESTINATION "${foveal_cmake_dir}")
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/foveal-config.cmake.in" "${PROJECT_BINARY_DIR}/foveal-config.cmake"
  INSTALL_DESTINATION "${foveal_cmake_dir}" NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/foveal-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/foveal-config.cmake" "${PROJECT_BINARY_DIR}/foveal-config-version.cmake"
  DESTINATION "${foveal_cmake_dir}")

# The prefix is written relative to the .pc file, so that a moved installation is still found.
cmake_path(SET foveal_pc_dir NORMALIZE "/${CMAKE_INSTALL_LIBDIR}/pkgconfig")
cmake_path(RELATIVE_PATH foveal_pc_dir BASE_DIRECTORY "/" OUTPUT_VARIABLE foveal_pc_depth)
string(REGEX REPLACE "[^/]+" ".." foveal_pc_to_prefix "${foveal_pc_depth}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/foveal.pc.in" "${PROJECT_BINARY_DIR}/foveal.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/foveal.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
