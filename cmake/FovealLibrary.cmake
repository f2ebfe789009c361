# The library: foveal_objects (compiled once), foveal (what is installed) and foveal_internal (the
# same objects as an archive, for tests that look inside; with FOVEAL_EXPORT_INTERNALS foveal itself).

find_package(Threads REQUIRED)
find_package(hwy REQUIRED)
find_path(FOVEAL_DLPACK_INCLUDE_DIR dlpack/dlpack.h REQUIRED)
mark_as_advanced(FOVEAL_DLPACK_INCLUDE_DIR)
if(FOVEAL_OPENMP)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()

# What a program that includes our public headers needs. Not installed: the installed target has
# include/ and the copy of dlpack.h there.
add_library(foveal_headers INTERFACE)
target_include_directories(foveal_headers INTERFACE "${PROJECT_SOURCE_DIR}/include")
target_include_directories(foveal_headers SYSTEM INTERFACE "${FOVEAL_DLPACK_INCLUDE_DIR}")
target_compile_features(foveal_headers INTERFACE cxx_std_20)

file(GLOB_RECURSE foveal_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/*.cpp")
add_library(foveal_objects OBJECT ${foveal_sources})
foveal_configure_target(foveal_objects)
set_target_properties(foveal_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
if(FOVEAL_EXPORT_INTERNALS)
  set_target_properties(foveal_objects PROPERTIES CXX_VISIBILITY_PRESET default)
endif()
target_include_directories(foveal_objects PRIVATE "${PROJECT_SOURCE_DIR}/src")
target_compile_definitions(foveal_objects PRIVATE
  FOVEAL_BUILDING_LIBRARY
  FOVEAL_VERSION_STRING="${PROJECT_VERSION}"
  FOVEAL_WITH_OPENMP=$<BOOL:${FOVEAL_OPENMP}>
  FOVEAL_WITH_CUDA=$<BOOL:${FOVEAL_CUDA_ENABLED}>
  "FOVEAL_CUDA_ARCHS_TEXT=\"${foveal_cuda_archs_text}\""
  $<$<CONFIG:Debug>:FOVEAL_DEBUG>)
target_link_libraries(foveal_objects PRIVATE
  foveal_headers Threads::Threads hwy::hwy $<$<BOOL:${FOVEAL_OPENMP}>:OpenMP::OpenMP_CXX>)

set(foveal_object_targets foveal_objects)
if(FOVEAL_CUDA_ENABLED)
  set(foveal_hopper_sources ${foveal_cuda_sources})
  list(FILTER foveal_hopper_sources INCLUDE REGEX "/src/cuda/hopper/")
  set(foveal_portable_sources ${foveal_cuda_sources})
  list(FILTER foveal_portable_sources EXCLUDE REGEX "/src/cuda/hopper/")
  set(foveal_portable_archs ${FOVEAL_CUDA_ARCHS})
  list(FILTER foveal_portable_archs EXCLUDE REGEX "[a-z]$")
  if(foveal_portable_sources AND foveal_portable_archs)
    list(SORT foveal_portable_archs COMPARE NATURAL)
    list(GET foveal_portable_archs 0 foveal_lowest_arch)
    foveal_add_cuda_objects(foveal_cuda_portable
      ARCHS ${foveal_portable_archs} PTX ${foveal_lowest_arch} SOURCES ${foveal_portable_sources})
    list(APPEND foveal_object_targets foveal_cuda_portable)
  endif()
  if(foveal_hopper_sources AND "90a" IN_LIST FOVEAL_CUDA_ARCHS)
    # No PTX: a compute_90 image would refuse the instructions that only sm_90a has.
    foveal_add_cuda_objects(foveal_cuda_hopper ARCHS 90a SOURCES ${foveal_hopper_sources})
    list(APPEND foveal_object_targets foveal_cuda_hopper)
    target_compile_definitions(foveal_objects PRIVATE FOVEAL_WITH_HOPPER)
  endif()
endif()

add_library(foveal SHARED)
add_library(foveal::foveal ALIAS foveal)
target_link_libraries(foveal PRIVATE ${foveal_object_targets})
set_target_properties(foveal PROPERTIES
  VERSION "${PROJECT_VERSION}"
  SOVERSION "${FOVEAL_SOVERSION}"
  LINKER_LANGUAGE CXX)
target_include_directories(foveal INTERFACE
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
  "$<BUILD_INTERFACE:${FOVEAL_DLPACK_INCLUDE_DIR}>"
  "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_compile_features(foveal INTERFACE cxx_std_20)
# clang links its sanitizer runtime into programs only, so a sanitized library has open symbols.
if(FOVEAL_SANITIZE STREQUAL "" OR CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_link_options(foveal PRIVATE -Wl,--no-undefined)
endif()
target_link_options(foveal PRIVATE -Wl,--as-needed -Wl,--exclude-libs,ALL
  "-Wl,--version-script=${PROJECT_SOURCE_DIR}/src/capi/exports.map" ${foveal_sanitizer_flags})
set_property(TARGET foveal APPEND PROPERTY LINK_DEPENDS "${PROJECT_SOURCE_DIR}/src/capi/exports.map")

if(FOVEAL_CUDA_ENABLED)
  target_link_libraries(foveal PRIVATE CUDA::cudart_static)
endif()

if(FOVEAL_EXPORT_INTERNALS)
  add_library(foveal_internal INTERFACE)
  target_link_libraries(foveal_internal INTERFACE foveal foveal_headers)
  target_include_directories(foveal_internal INTERFACE "${PROJECT_SOURCE_DIR}/src")
else()
  add_library(foveal_internal STATIC EXCLUDE_FROM_ALL)
  target_link_libraries(foveal_internal PRIVATE ${foveal_object_targets} PUBLIC foveal_headers)
  target_include_directories(foveal_internal PUBLIC "${PROJECT_SOURCE_DIR}/src")
  set_target_properties(foveal_internal PROPERTIES LINKER_LANGUAGE CXX)
  if(FOVEAL_CUDA_ENABLED)
    target_link_libraries(foveal_internal PRIVATE CUDA::cudart_static)
  endif()
endif()
