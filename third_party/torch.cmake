# Finds LibTorch. CUDA and NCCL are used by default if LibTorch was built with them.
if(NOT CUDA_TOOLKIT_ROOT_DIR AND DEFINED ENV{CUDA_TOOLKIT_ROOT_DIR})
  # For a toolkit in a non-standard place: LibTorch's package reads only the CMake variable.
  set(CUDA_TOOLKIT_ROOT_DIR $ENV{CUDA_TOOLKIT_ROOT_DIR} CACHE PATH "CUDA toolkit")
endif()
# Architectures: the user's list, or the default list of cuda_architectures.cmake, which needs nvcc. LibTorch's package
# finds nvcc but needs a list before that, and its own list has architectures that CUDA 13 has dropped. So pass one
# architecture for now.
include(${CMAKE_CURRENT_LIST_DIR}/cuda_architectures.cmake)
set(default_architectures OFF)
if(NOT TORCH_CUDA_ARCH_LIST AND "$ENV{TORCH_CUDA_ARCH_LIST}" STREQUAL "")
  set(default_architectures ON)
  set(TORCH_CUDA_ARCH_LIST 9.0+PTX)
endif()
# nvcc compiles host code with g++, even if clang compiles the rest, unless the user names another compiler. This must
# come before LibTorch's package, which overwrites the user's variable with clang.
set(TRAINKIT_CUDA_HOST_COMPILER ${CMAKE_CUDA_HOST_COMPILER})
if(NOT TRAINKIT_CUDA_HOST_COMPILER)
  set(TRAINKIT_CUDA_HOST_COMPILER $ENV{CUDAHOSTCXX})
endif()
if(NOT TRAINKIT_CUDA_HOST_COMPILER AND NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  find_program(TRAINKIT_GXX g++)
  if(TRAINKIT_GXX)
    set(TRAINKIT_CUDA_HOST_COMPILER ${TRAINKIT_GXX})
  endif()
endif()
if(NOT TRAINKIT_CUDA_HOST_COMPILER)
  set(TRAINKIT_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
find_package(Torch 2.11 REQUIRED)
if(NOT Torch_VERSION VERSION_LESS 2.12)
  message(FATAL_ERROR "LibTorch ${Torch_VERSION} in ${Torch_DIR}: got a later series than 2.11, which has other autograd classes. "
    "Set Torch_DIR to a LibTorch 2.11, or install one with ./dev setup.")
endif()

set(torch_has_cuda OFF)
set(torch_has_nccl OFF)
if(TARGET torch_cuda)
  set(torch_has_cuda ON)
  get_target_property(definitions torch_cuda INTERFACE_COMPILE_DEFINITIONS)
  if("USE_C10D_NCCL" IN_LIST definitions)
    # nccl.h is in the toolkit, or in a Python package next to torch.
    get_target_property(torch_library_file torch LOCATION)
    get_filename_component(torch_package ${torch_library_file}/../.. ABSOLUTE)
    find_path(TRAINKIT_NCCL_INCLUDE_DIR nccl.h HINTS ${torch_package}/../nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS})
    if(TRAINKIT_NCCL_INCLUDE_DIR)
      set(torch_has_nccl ON)
    endif()
  endif()
endif()
option(TRAINKIT_WITH_CUDA "Use CUDA" ${torch_has_cuda})
option(TRAINKIT_WITH_NCCL "Use NCCL" ${torch_has_nccl})
if(TRAINKIT_WITH_CUDA AND NOT torch_has_cuda)
  message(FATAL_ERROR "TRAINKIT_WITH_CUDA is on, but this LibTorch was built without CUDA")
endif()
if(TRAINKIT_WITH_NCCL AND NOT (torch_has_nccl AND TRAINKIT_WITH_CUDA))
  message(FATAL_ERROR "TRAINKIT_WITH_NCCL is on, but it needs TRAINKIT_WITH_CUDA, a LibTorch with NCCL, and nccl.h")
endif()

set(TRAINKIT_KERNEL_FLAGS)  # flags of nvcc
set(TRAINKIT_KERNEL_CODES)  # codes in the objects: "sm_75 sm_80 ... compute_120"
if(TRAINKIT_WITH_CUDA)
  if(default_architectures)
    trainkit_default_architectures(${CMAKE_CUDA_COMPILER} TORCH_CUDA_ARCH_LIST)
    torch_cuda_get_nvcc_gencode_flag(NVCC_FLAGS_EXTRA)
  endif()
  trainkit_kernel_flags(${CMAKE_CUDA_COMPILER} "${NVCC_FLAGS_EXTRA}" TRAINKIT_KERNEL_FLAGS TRAINKIT_KERNEL_CODES)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
    list(APPEND TRAINKIT_KERNEL_FLAGS --compress-mode=size)  # a sixth of the size
  endif()
  message(STATUS "trainkit: CUDA kernels for ${TRAINKIT_KERNEL_CODES}")
endif()

# Targets to link for code that calls CUDA or NCCL. Each defines its macro (TRAINKIT_WITH_CUDA, TRAINKIT_WITH_NCCL) for
# the sources of the linking target. If CUDA or NCCL is off, the target is empty.
add_library(trainkit_cuda INTERFACE)
add_library(trainkit_nccl INTERFACE)
if(TRAINKIT_WITH_CUDA)
  target_link_libraries(trainkit_cuda INTERFACE c10_cuda torch::cudart)
  target_compile_definitions(trainkit_cuda INTERFACE TRAINKIT_WITH_CUDA=1)
endif()
if(TRAINKIT_WITH_NCCL)
  target_link_libraries(trainkit_nccl INTERFACE trainkit_cuda)
  target_include_directories(trainkit_nccl SYSTEM INTERFACE $<BUILD_INTERFACE:${TRAINKIT_NCCL_INCLUDE_DIR}>)
  target_compile_definitions(trainkit_nccl INTERFACE TRAINKIT_WITH_NCCL=1)
endif()
message(STATUS "trainkit: LibTorch ${Torch_VERSION}, CUDA ${TRAINKIT_WITH_CUDA}, NCCL ${TRAINKIT_WITH_NCCL}")
