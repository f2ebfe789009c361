# Installs a build into an empty prefix, moves the prefix, and builds and runs a C++ and a C project
# against it:
#
#   cmake -D BUILD_DIR=... -D WORK_DIR=... -D CXX=... -D CC=... -P check_install.cmake

cmake_minimum_required(VERSION 3.25)

# Runs a command that must succeed; its output is in `output`.
macro(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE exit_code
    OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT exit_code EQUAL 0)
    list(JOIN ARGN " " command_text)
    message(FATAL_ERROR "${command_text}\nfailed (${exit_code}):\n${output}")
  endif()
endmacro()

set(consumer_dir "${CMAKE_CURRENT_LIST_DIR}")
file(REMOVE_RECURSE "${WORK_DIR}")
file(MAKE_DIRECTORY "${WORK_DIR}/c")
run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/staged")
# Whoever unpacks the package elsewhere must find everything.
file(RENAME "${WORK_DIR}/staged" "${WORK_DIR}/prefix")
set(prefix "${WORK_DIR}/prefix")

file(GLOB_RECURSE package_texts "${prefix}/*.cmake" "${prefix}/*.pc" "${prefix}/include/*")
if(NOT package_texts)
  message(FATAL_ERROR "${prefix} holds no package files")
endif()
foreach(path IN LISTS package_texts)
  file(STRINGS "${path}" lines)
  foreach(foreign IN ITEMS "${BUILD_DIR}" "${WORK_DIR}")
    string(FIND "${lines}" "${foreign}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${path} names ${foreign}, which an installed file must not")
    endif()
  endforeach()
endforeach()

run("${CMAKE_COMMAND}" -S "${consumer_dir}/cpp_cmake" -B "${WORK_DIR}/cpp"
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_BUILD_TYPE=Release")
run("${CMAKE_COMMAND}" --build "${WORK_DIR}/cpp")
run("${WORK_DIR}/cpp/cpp_consumer")
message(STATUS "C++, find_package: ${output}")

file(GLOB_RECURSE pc_file "${prefix}/*/foveal.pc")
cmake_path(GET pc_file PARENT_PATH pc_dir)
file(GLOB_RECURSE library "${prefix}/*/libfoveal.so")
cmake_path(GET library PARENT_PATH library_dir)
set(ENV{PKG_CONFIG_PATH} "${pc_dir}")
set(ENV{LD_LIBRARY_PATH} "${library_dir}")
run(make -C "${consumer_dir}/c_pkgconfig" "CC=${CC}" "BUILD_DIR=${WORK_DIR}/c")
run("${WORK_DIR}/c/c_consumer")
message(STATUS "C, pkg-config: ${output}")

# The command finds its library by the path relative to itself.
unset(ENV{LD_LIBRARY_PATH})
if(EXISTS "${prefix}/bin/foveal")
  run("${prefix}/bin/foveal" devices)
  message(STATUS "foveal devices:\n${output}")
endif()
