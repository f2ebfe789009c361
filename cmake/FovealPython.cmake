# The Python package: FOVEAL_PYTHON builds the operators for PyTorch against torch's stable ABI, and
# the install component `python` lays out what a wheel has inside of it:
#
#   foveal/*.py
#   foveal/bin/foveal                 the command
#   foveal/lib/libfoveal.so.0         the library, with those it needs that a machine may lack
#   foveal/lib/libfoveal_torch.so     the operators
#   foveal/include/                   the headers, DLPack's among them
#
# torch's headers are those of the interpreter's own torch, also of one that pip's build isolation
# hides. FOVEAL_PYTHON_TORCH=off builds a package for NumPy alone.

set(FOVEAL_PYTHON_TORCH on CACHE STRING "Build the operators for PyTorch: on, off")
set_property(CACHE FOVEAL_PYTHON_TORCH PROPERTY STRINGS on off)
set(FOVEAL_TORCH_ROOT "" CACHE PATH "Folder of the torch package to build against; empty: found by Python")

set(foveal_python_dir "${PROJECT_SOURCE_DIR}/python")
add_custom_target(foveal_python)  # Everything compiled that the package has.
add_dependencies(foveal_python foveal)
string(TOLOWER "${FOVEAL_PYTHON_TORCH}" foveal_python_torch)
if(NOT foveal_python_torch MATCHES "^(on|off)$")
  message(FATAL_ERROR "FOVEAL_PYTHON_TORCH=${FOVEAL_PYTHON_TORCH}: on or off is allowed")
endif()

# Sets `result` to the folder of the torch package.
function(foveal_find_torch result)
  if(FOVEAL_TORCH_ROOT)
    set(${result} "${FOVEAL_TORCH_ROOT}" PARENT_SCOPE)
    return()
  endif()
  if(NOT Python_EXECUTABLE)
    find_package(Python 3.10 COMPONENTS Interpreter REQUIRED)
  endif()
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${foveal_python_dir}/build_backend/find_torch.py"
    OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${result} "${root}" PARENT_SCOPE)
endfunction()

if(foveal_python_torch STREQUAL "on")
  foveal_find_torch(foveal_torch_root)
  if(NOT EXISTS "${foveal_torch_root}/include/torch/csrc/stable/library.h")
    message(FATAL_ERROR
      "FOVEAL_PYTHON=ON, but no torch of 2.10 or later in this Python: install it, name it by \
FOVEAL_TORCH_ROOT, or leave out the operators for PyTorch by FOVEAL_PYTHON_TORCH=off")
  endif()
  message(STATUS "foveal: operators for PyTorch, against ${foveal_torch_root}")

  file(GLOB foveal_torch_sources CONFIGURE_DEPENDS "${foveal_python_dir}/csrc/*.cpp")
  add_library(foveal_torch MODULE ${foveal_torch_sources})
  foveal_configure_target(foveal_torch)
  # 2.10's symbols and no later ones: one binary for every torch from there on.
  target_compile_definitions(foveal_torch PRIVATE TORCH_TARGET_VERSION=0x020a000000000000)
  target_include_directories(foveal_torch SYSTEM PRIVATE "${foveal_torch_root}/include")
  # libtorch.so has no symbol of its own but needs libtorch_cuda.so where there is one, and by it
  # the weak symbol of the current stream is found.
  target_link_directories(foveal_torch PRIVATE "${foveal_torch_root}/lib")
  target_link_libraries(foveal_torch PRIVATE
    foveal -Wl,--no-as-needed -ltorch -ltorch_cpu -Wl,--as-needed)
  set_target_properties(foveal_torch PROPERTIES
    INSTALL_RPATH "$ORIGIN"
    CXX_VISIBILITY_PRESET hidden)
  add_dependencies(foveal_python foveal_torch)
  install(TARGETS foveal_torch LIBRARY DESTINATION foveal/lib COMPONENT python EXCLUDE_FROM_ALL)
endif()

set_target_properties(foveal PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS foveal
  LIBRARY DESTINATION foveal/lib COMPONENT python NAMELINK_SKIP EXCLUDE_FROM_ALL)
install(DIRECTORY "${foveal_python_dir}/foveal" DESTINATION .
  COMPONENT python EXCLUDE_FROM_ALL
  FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed"
  PATTERN "__pycache__" EXCLUDE)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/foveal" DESTINATION foveal/include
  COMPONENT python EXCLUDE_FROM_ALL FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES "${FOVEAL_DLPACK_INCLUDE_DIR}/dlpack/dlpack.h"
  DESTINATION foveal/include/dlpack COMPONENT python EXCLUDE_FROM_ALL)
if(TARGET foveal_cli)
  add_dependencies(foveal_python foveal_cli)
  install(TARGETS foveal_cli RUNTIME DESTINATION foveal/bin COMPONENT python EXCLUDE_FROM_ALL)
endif()

# Shared libraries of Debian's packages, under the names by which the loader asks for them.
if(TARGET foveal_cli)
  find_package(fmt REQUIRED)
endif()
foreach(dependency IN ITEMS hwy::hwy fmt::fmt)
  if(TARGET ${dependency})
    get_target_property(type ${dependency} TYPE)
    if(type STREQUAL "SHARED_LIBRARY")
      install(FILES "$<TARGET_FILE:${dependency}>" DESTINATION foveal/lib
        RENAME "$<TARGET_SONAME_FILE_NAME:${dependency}>" COMPONENT python EXCLUDE_FROM_ALL)
    endif()
  endif()
endforeach()
