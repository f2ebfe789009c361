# What every target of the project is compiled with: language level, optimisation, warnings,
# sanitizers. Applied target by target with foveal_configure_target(), so that a project that adds
# foveal as a subdirectory keeps its own flags.

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  # One bin/ and one lib/, so that the command finds the library by the same relative path in the
  # build tree as in an installation.
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  find_program(FOVEAL_CCACHE ccache)
  mark_as_advanced(FOVEAL_CCACHE)
  foreach(language IN ITEMS C CXX CUDA)
    if(FOVEAL_CCACHE AND NOT CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER "${FOVEAL_CCACHE}")
    endif()
  endforeach()
endif()

if(NOT FOVEAL_SANITIZE STREQUAL "" AND NOT FOVEAL_SANITIZE MATCHES "^(address|thread)$")
  message(FATAL_ERROR "FOVEAL_SANITIZE=${FOVEAL_SANITIZE}: empty, address or thread is allowed")
endif()
if(FOVEAL_SANITIZE STREQUAL "thread" AND FOVEAL_OPENMP)
  message(FATAL_ERROR
    "FOVEAL_SANITIZE=thread needs FOVEAL_OPENMP=OFF: TSan does not see the barriers of GCC's OpenMP")
endif()

set(foveal_sanitizer_flags "")
if(FOVEAL_SANITIZE STREQUAL "address")
  set(foveal_sanitizer_flags -fsanitize=address,undefined,float-cast-overflow
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(FOVEAL_SANITIZE STREQUAL "thread")
  set(foveal_sanitizer_flags -fsanitize=thread -fno-omit-frame-pointer)
endif()

# -Wsign-conversion is left out: extents and strides are signed, sizes of containers are not, and a
# cast at each meeting hides more than it shows. -Wmissing-field-initializers fires on designated
# initializers, whose point is to name only what differs from the default.
set(foveal_warning_flags -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Wshadow
  -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlapping copies in std::string's operator+ (GCC bug 105651).
  list(APPEND foveal_warning_flags -Wno-restrict)
endif()
if(FOVEAL_WERROR)
  list(APPEND foveal_warning_flags -Werror)
endif()

# Sets language level, visibility, warnings and sanitizers of one target of ours.
function(foveal_configure_target target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    C_STANDARD 99
    C_STANDARD_REQUIRED ON
    C_EXTENSIONS OFF
    C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  # No -ffast-math: masking rests on the arithmetic of infinities and NaN.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C,CXX>:${foveal_warning_flags}>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno>
    $<$<COMPILE_LANGUAGE:C,CXX>:${foveal_sanitizer_flags}>)
  target_link_options(${target} PRIVATE ${foveal_sanitizer_flags})
endfunction()
