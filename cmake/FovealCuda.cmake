# Decides whether the CUDA kernels are built and says so in one line. Sets FOVEAL_CUDA_ENABLED.
# Only *.cu files need CUDA: the host files of src/cuda are part of every build, so that plans for a
# GPU that is not there can be explained.

file(GLOB_RECURSE foveal_cuda_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/cuda/*.cu")

string(TOLOWER "${FOVEAL_CUDA}" foveal_cuda_choice)
if(NOT foveal_cuda_choice MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "FOVEAL_CUDA=${FOVEAL_CUDA}: auto, on or off is allowed")
endif()

# Sets `result` to whether this machine has an NVIDIA GPU and its driver.
function(foveal_find_gpu result)
  set(${result} FALSE PARENT_SCOPE)
  if(EXISTS /dev/nvidia0)
    set(${result} TRUE PARENT_SCOPE)
    return()
  endif()
  find_program(FOVEAL_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(FOVEAL_NVIDIA_SMI)
  if(FOVEAL_NVIDIA_SMI)
    execute_process(COMMAND "${FOVEAL_NVIDIA_SMI}" -L TIMEOUT 10
      OUTPUT_VARIABLE gpus ERROR_QUIET RESULT_VARIABLE exit_code)
    if(exit_code EQUAL 0 AND gpus MATCHES "GPU 0")
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endif()
endfunction()

list(JOIN FOVEAL_CUDA_ARCHS " " foveal_cuda_archs_text)
if(NOT foveal_cuda_choice STREQUAL "off" AND NOT FOVEAL_CUDA_ARCHS MATCHES "(^|;)[0-9]+(;|$)")
  message(FATAL_ERROR "FOVEAL_CUDA_ARCHS=${foveal_cuda_archs_text}: the portable kernels need an "
    "architecture without a letter as well, such as 90 beside 90a")
endif()
set(FOVEAL_CUDA_ENABLED FALSE)
if(foveal_cuda_choice STREQUAL "off")
  set(foveal_cuda_reason "off: FOVEAL_CUDA=off")
else()
  find_program(FOVEAL_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(FOVEAL_NVCC)
  foveal_find_gpu(foveal_gpu_found)
  if(foveal_cuda_choice STREQUAL "on" AND NOT FOVEAL_NVCC)
    message(FATAL_ERROR
      "FOVEAL_CUDA=on, but there is no nvcc: put it on PATH, set CUDA_HOME, or take FOVEAL_CUDA=off")
  elseif(foveal_cuda_choice STREQUAL "auto" AND NOT FOVEAL_NVCC)
    set(foveal_cuda_reason "off: no nvcc (FOVEAL_CUDA=auto)")
  elseif(foveal_cuda_choice STREQUAL "auto" AND NOT foveal_gpu_found)
    set(foveal_cuda_reason "off: nvcc but no GPU (FOVEAL_CUDA=auto; =on builds the kernels all the same)")
  elseif(NOT foveal_cuda_sources)
    set(foveal_cuda_reason "off: no .cu file in src/cuda")
  else()
    set(FOVEAL_CUDA_ENABLED TRUE)
  endif()
endif()

if(FOVEAL_CUDA_ENABLED)
  # Each target names its own architectures; this only keeps CMake from choosing one.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${FOVEAL_NVCC}")
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit 12.5 REQUIRED)
  list(LENGTH foveal_cuda_sources foveal_cuda_count)
  set(foveal_cuda_reason
    "on: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${foveal_cuda_count} .cu files, for ${foveal_cuda_archs_text}")
endif()
message(STATUS "foveal: CUDA ${foveal_cuda_reason}")
set(FOVEAL_CUDA_STATUS "${foveal_cuda_reason}" CACHE INTERNAL "What was decided, for scripts")

# Makes the object library `target` of .cu files, as SASS for each of `archs`; with `ptx` given,
# also as PTX of that architecture for the GPUs still to come.
function(foveal_add_cuda_objects target)
  cmake_parse_arguments(arg "" "PTX" "ARCHS;SOURCES" ${ARGN})
  add_library(${target} OBJECT ${arg_SOURCES})
  list(TRANSFORM arg_ARCHS APPEND "-real")
  if(arg_PTX)
    list(APPEND arg_ARCHS "${arg_PTX}-virtual")
  endif()
  set_target_properties(${target} PROPERTIES
    CUDA_ARCHITECTURES "${arg_ARCHS}"
    CUDA_VISIBILITY_PRESET hidden
    POSITION_INDEPENDENT_CODE ON)
  foveal_configure_target(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  # -std by hand: CMake 3.25 does not know that nvcc has C++20. The host compiler sees what nvcc
  # makes of a source, where pointers to members stand in parentheses of their own.
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Xptxas=-warn-spills;-Xcompiler=-Wall,-Wextra,-Wno-parentheses>")
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    # A third of the size; unpacked when a kernel is first loaded.
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>")
  endif()
  if(FOVEAL_STALLS)
    target_compile_definitions(${target} PRIVATE FOVEAL_STALLS)  # takes registers: some kernels spill
  elseif(FOVEAL_WERROR)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
  endif()
  if(FOVEAL_CUDA_RESOURCES)
    # Beside each object OBJECT.ptxas, for tests/resources.
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>")
    set(launcher "${PROJECT_SOURCE_DIR}/scripts/keep_ptxas_report.sh" ${CMAKE_CUDA_COMPILER_LAUNCHER})
    set_target_properties(${target} PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
  endif()
endfunction()
