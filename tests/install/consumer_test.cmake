# Installs the library, moves it, and builds and runs examples/consumer with it there.
cmake_minimum_required(VERSION 3.25)

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

set(first ${WORK_DIR}/installed)
set(prefix ${WORK_DIR}/moved)
file(REMOVE_RECURSE ${first} ${prefix} ${WORK_DIR}/consumer)
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${first})

# No absolute path of the build machine: no quoted or listed text in the package begins with a slash.
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
set(arguments -DCMAKE_PREFIX_PATH=${prefix} -DTorch_DIR=${TORCH_CMAKE_DIR} -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_FLAGS_RELEASE=-O0)  # short compile time; the library is optimized
if(CUDA_COMPILER)
  list(APPEND arguments -DCMAKE_CUDA_COMPILER=${CUDA_COMPILER} -DCUDA_TOOLKIT_ROOT_DIR=${CUDA_ROOT})
endif()
if(LAUNCHER)
  list(APPEND arguments -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
endif()
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE_DIR}/examples/consumer -B ${WORK_DIR}/consumer ${arguments})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/consumer)
run(${WORK_DIR}/consumer/consumer)

set(ENV{TORCH_CUDA_ARCH_LIST} 8.0)  # else each further project compiles a program that looks for GPUs

# The trainer of docs/own-trainer.md trains, resumes to the same weights, and trains on two ranks.
file(REMOVE_RECURSE ${WORK_DIR}/own_trainer ${WORK_DIR}/own_runs)
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE_DIR}/examples/own_trainer -B ${WORK_DIR}/own_trainer ${arguments})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/own_trainer)
set(trainer ${WORK_DIR}/own_trainer/own_trainer)
set(runs ${WORK_DIR}/own_runs)
set(flags --data_dir ${runs}/data --hidden 32 --lr 0.01 --save_every 100 --num_workers 1 --device cpu)
run(${trainer} --make_demo_data ${runs}/data)
run(${trainer} ${flags} --max_steps 600 --epochs 100 --output_dir ${runs}/whole)
run(${trainer} ${flags} --max_steps 600 --epochs 100 --output_dir ${runs}/part --max_time 0.05s)
run(${trainer} ${flags} --max_steps 600 --epochs 100 --output_dir ${runs}/part --resume latest --max_time 0)
file(READ ${runs}/whole/summary.json summary)
string(JSON accuracy GET ${summary} accuracy)
if(accuracy LESS 0.9)
  message(FATAL_ERROR "an accuracy of ${accuracy} after 600 steps")
endif()
run(${trainer} plan --data_dir ${runs}/data --gpu rtx4090 --devices 3)
run(${BUILD_DIR}/bin/trainkit plan --app ${trainer} --gpu_memory 1GiB -- --data_dir ${runs}/data)
run(${trainer} benchmark --data_dir ${runs}/data --device cpu --seconds 0.1)
set(last checkpoints/step-00000600/model.safetensors)
run(${CMAKE_COMMAND} -E compare_files ${runs}/whole/${last} ${runs}/part/${last})
run(${BUILD_DIR}/bin/trainkit launch --nproc_per_node 2 -- ${trainer} ${flags} --max_steps 50 --output_dir ${runs}/ranks)
execute_process(COMMAND ${trainer} --output_dir ${runs}/refused RESULT_VARIABLE status ERROR_VARIABLE text)
if(NOT status EQUAL 2 OR NOT text MATCHES "data_dir" OR EXISTS ${runs}/refused)
  message(FATAL_ERROR "a run without data ended with ${status}: ${text}")
endif()

# A missing component is an error of find_package, not of the linker.
file(WRITE ${WORK_DIR}/unknown/CMakeLists.txt
  "cmake_minimum_required(VERSION 3.25)\nproject(unknown LANGUAGES CXX)\nfind_package(trainkit REQUIRED COMPONENTS no_such_module)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${WORK_DIR}/unknown -B ${WORK_DIR}/unknown/build ${arguments}
                RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE text)
if(NOT status OR NOT text MATCHES "no_such_module")
  message(FATAL_ERROR "find_package took a component that does not exist: ${text}")
endif()

# Another series of LibTorch than that of the build is an error that names both, whoever looks for LibTorch first.
set(torch ${WORK_DIR}/other_torch/share/cmake/Torch)
file(WRITE ${torch}/TorchConfigVersion.cmake "set(PACKAGE_VERSION 2.99.0)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
file(WRITE ${torch}/TorchConfig.cmake "add_library(torch SHARED IMPORTED)\nset(TORCH_FOUND TRUE)\n")
foreach(first "" "find_package(Torch REQUIRED)")
  file(REMOVE_RECURSE ${WORK_DIR}/other)
  file(WRITE ${WORK_DIR}/other/CMakeLists.txt
    "cmake_minimum_required(VERSION 3.25)\nproject(other LANGUAGES CXX)\n${first}\nfind_package(trainkit REQUIRED)\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${WORK_DIR}/other -B ${WORK_DIR}/other/build ${arguments} -DTorch_DIR=${torch}
                  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE text)
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
  if(NOT status OR NOT text MATCHES "built with LibTorch [0-9.]+, but LibTorch in [^ ]*other_torch[^ ]* is 2\\.99\\.0")
    message(FATAL_ERROR "find_package took another LibTorch: ${text}")
  endif()
endforeach()

# So is another release of Abseil.
file(WRITE ${WORK_DIR}/other_abseil/absl/base/config.h "#define ABSL_LTS_RELEASE_VERSION 20990101\n")
file(REMOVE_RECURSE ${WORK_DIR}/other)
file(WRITE ${WORK_DIR}/other/CMakeLists.txt
  "cmake_minimum_required(VERSION 3.25)\nproject(other LANGUAGES CXX)\nadd_library(absl::config INTERFACE IMPORTED)\n"
  "target_include_directories(absl::config INTERFACE ${WORK_DIR}/other_abseil)\nfind_package(trainkit REQUIRED)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${WORK_DIR}/other -B ${WORK_DIR}/other/build ${arguments}
                RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE text)
string(REGEX REPLACE "[ \n]+" " " text "${text}")
if(NOT status OR NOT text MATCHES "built with Abseil [0-9]+, but this project has Abseil 20990101")
  message(FATAL_ERROR "find_package took another Abseil: ${text}")
endif()
