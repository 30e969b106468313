# Configures the project with a LibTorch without CUDA, and looks for CUDA in the commands of the build. With
# TRAINKIT_TEST_FULL=1 also builds the trainers, looks for CUDA's libraries in them, and trains.
cmake_minimum_required(VERSION 3.25)

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

set(cuda "[^\n \"]*(c10_cuda|torch_cuda|torch_nvshmem|cudart|nccl|cublas|WITH_CUDA|WITH_NCCL)[^\n \"]*")
set(folder ${WORK_DIR}/without_cuda)
set(build ${folder}/build)
run(${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/torch_without_cuda.py ${TORCH_CMAKE_DIR}/../../.. ${folder}/torch)

run(${CMAKE_COMMAND} --fresh -G Ninja -S ${SOURCE_DIR} -B ${build} -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_COMPILER=${COMPILER} -DTorch_DIR=${folder}/torch/share/cmake/Torch -DPython3_EXECUTABLE=${PYTHON} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}
    -DTRAINKIT_BUILD_BENCHMARKS=OFF)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} -- -t commands all OUTPUT_VARIABLE commands COMMAND_ERROR_IS_FATAL ANY)
if(NOT commands MATCHES "libtorch_cpu\\.so")
  message(FATAL_ERROR "no command of the build links LibTorch")
endif()
if(commands MATCHES "${cuda}")
  message(FATAL_ERROR "a command of a build without CUDA names ${CMAKE_MATCH_0}")
endif()

if("$ENV{TRAINKIT_TEST_FULL}")
  run(${CMAKE_COMMAND} --build ${build} --target trainkit-tool trainkit-transformer trainkit-hsi trainkit-gpt2rec trainkit-emotion)
  file(GLOB programs ${build}/bin/trainkit*)
  foreach(program ${programs})
    execute_process(COMMAND readelf -d ${program} OUTPUT_VARIABLE needed COMMAND_ERROR_IS_FATAL ANY)
    if(needed MATCHES "${cuda}")
      message(FATAL_ERROR "${program} names ${CMAKE_MATCH_0}")
    endif()
  endforeach()
  run(${build}/bin/trainkit-transformer --make_demo_data ${folder}/text)
  run(${build}/bin/trainkit-transformer --input ${folder}/text --output_dir ${folder}/run --overwrite
      --preset shakespeare_char_cpu --max_steps 20)
endif()
