# Part of trainkit's installed package: finds the LibTorch that it was built with, of the series trainkit_torch_series.
# Another series has other classes in memory: a program with both would crash.
#
# The CMake package of a LibTorch with CUDA fails without a CUDA toolkit, although a program that links LibTorch needs none.
# Without a toolkit this file includes LibTorch's list of targets itself and defines the targets that it refers to.
macro(trainkit_check_series VERSION PLACE)
  if(NOT "${VERSION}" MATCHES "^${trainkit_torch_series}(\\.|$)")
    set(trainkit_FOUND FALSE)
    set(trainkit_NOT_FOUND_MESSAGE "trainkit was built with LibTorch ${trainkit_torch_series}, but ${PLACE} is ${VERSION}. Set Torch_DIR to a LibTorch ${trainkit_torch_series}, or build trainkit with ${VERSION}")
    return()
  endif()
endmacro()

if(TARGET torch)
  if(Torch_VERSION)  # else found in another folder of the project, which sets no variable here
    trainkit_check_series(${Torch_VERSION} "LibTorch in ${Torch_DIR}")
  endif()
else()
  find_path(trainkit_TORCH_CMAKE_DIR TorchConfig.cmake HINTS ${Torch_DIR} ENV Torch_DIR
            PATH_SUFFIXES share/cmake/Torch torch/share/cmake/Torch)
  find_program(trainkit_NVCC nvcc HINTS ${CUDA_TOOLKIT_ROOT_DIR} ENV CUDA_TOOLKIT_ROOT_DIR ENV CUDA_HOME ENV CUDA_PATH
               PATH_SUFFIXES bin cuda/bin)
  mark_as_advanced(trainkit_TORCH_CMAKE_DIR trainkit_NVCC)
  set(trainkit_torch ${trainkit_TORCH_CMAKE_DIR}/../../..)
  get_filename_component(trainkit_torch "${trainkit_torch}" ABSOLUTE)
  if(trainkit_TORCH_CMAKE_DIR)
    include(${trainkit_TORCH_CMAKE_DIR}/TorchConfigVersion.cmake)
    trainkit_check_series("${PACKAGE_VERSION}" "LibTorch in ${trainkit_torch}")
  endif()
  if(NOT EXISTS ${trainkit_torch}/lib/libtorch_cuda.so OR trainkit_NVCC OR CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    if(trainkit_TORCH_CMAKE_DIR AND NOT Torch_DIR)
      set(Torch_DIR ${trainkit_TORCH_CMAKE_DIR})
    endif()
    find_dependency(Torch ${trainkit_torch_series})
    trainkit_check_series("${Torch_VERSION}" "LibTorch in ${Torch_DIR}")
  else()
    message(STATUS "trainkit: no CUDA toolkit found, which linking LibTorch in ${trainkit_torch} does not need")
    file(GLOB trainkit_cudart ${trainkit_torch}/../nvidia/cu*/lib/libcudart.so.* ${trainkit_torch}/lib/libcudart*.so.*)
    if(NOT trainkit_cudart)
      set(trainkit_FOUND FALSE)
      set(trainkit_NOT_FOUND_MESSAGE "no libcudart next to LibTorch in ${trainkit_torch}, and no CUDA toolkit")
      return()
    endif()
    list(GET trainkit_cudart 0 trainkit_cudart)
    add_library(torch::cudart SHARED IMPORTED)
    set_property(TARGET torch::cudart PROPERTY IMPORTED_LOCATION ${trainkit_cudart})
    foreach(target protobuf::libprotobuf caffe2::mkl)  # also empty in LibTorch's package
      if(NOT TARGET ${target})
        add_library(${target} INTERFACE IMPORTED)
      endif()
    endforeach()
    include(${trainkit_TORCH_CMAKE_DIR}/../Caffe2/Caffe2Targets.cmake)
    set_property(TARGET torch PROPERTY INTERFACE_INCLUDE_DIRECTORIES ${trainkit_torch}/include
                                       ${trainkit_torch}/include/torch/csrc/api/include)
  endif()
endif()
