# Installs the built library, moves it elsewhere, and builds and runs examples/consumer against it there.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT RESULT_VARIABLE status)
  if(status)
    message(FATAL_ERROR "failed (${status}): ${ARGN}")
  endif()
endfunction()

set(first ${WORK_DIR}/installed)
set(prefix ${WORK_DIR}/moved)
file(REMOVE_RECURSE ${first} ${prefix} ${WORK_DIR}/consumer)
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${first})

# No path of the machine that built it: nothing quoted or listed in the package begins at the root of a file system.
file(GLOB_RECURSE package ${first}/*.cmake)
if(NOT package)
  message(FATAL_ERROR "no package file was installed below ${first}")
endif()
foreach(file ${package})
  file(READ ${file} text)
  string(REGEX REPLACE "#[^\n]*" "" text "${text}")
  if(text MATCHES "[\";> ](/[A-Za-z][^\";]*)")
    message(FATAL_ERROR "${file} holds the absolute path ${CMAKE_MATCH_1}")
  endif()
  foreach(machine ${BUILD_DIR} ${SOURCE_DIR} ${TORCH_CMAKE_DIR} ${first})
    string(FIND "${text}" "${machine}" found)
    if(NOT found EQUAL -1)
      message(FATAL_ERROR "${file} names ${machine}")
    endif()
  endforeach()
endforeach()

file(RENAME ${first} ${prefix})
set(arguments -DCMAKE_PREFIX_PATH=${prefix} -DTorch_DIR=${TORCH_CMAKE_DIR} -DCMAKE_BUILD_TYPE=Release)
if(CUDA_COMPILER)
  list(APPEND arguments -DCMAKE_CUDA_COMPILER=${CUDA_COMPILER} -DCUDA_TOOLKIT_ROOT_DIR=${CUDA_ROOT})
endif()
if(LAUNCHER)
  list(APPEND arguments -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
endif()
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE_DIR}/examples/consumer -B ${WORK_DIR}/consumer ${arguments})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/consumer)
run(${WORK_DIR}/consumer/consumer)

# A component that does not exist is an error of find_package, not of the linker.
file(WRITE ${WORK_DIR}/unknown/CMakeLists.txt
  "cmake_minimum_required(VERSION 3.25)\nproject(unknown LANGUAGES CXX)\nfind_package(trainkit REQUIRED COMPONENTS no_such_module)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${WORK_DIR}/unknown -B ${WORK_DIR}/unknown/build ${arguments}
                RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE text)
if(NOT status OR NOT text MATCHES "no_such_module")
  message(FATAL_ERROR "find_package took a component that does not exist: ${text}")
endif()
