# LibTorch, and whether CUDA and NCCL are used: where LibTorch was built with them, unless switched off.
if(NOT CUDA_TOOLKIT_ROOT_DIR AND DEFINED ENV{CUDA_TOOLKIT_ROOT_DIR})
  # a toolkit in an unusual place; LibTorch's package asks the variable alone
  set(CUDA_TOOLKIT_ROOT_DIR $ENV{CUDA_TOOLKIT_ROOT_DIR} CACHE PATH "CUDA toolkit")
endif()
# Our kernels are compiled for this architecture alone unless the user says otherwise; PTX makes later ones work. LibTorch's
# own list has ones that CUDA 13 no longer knows.
if(NOT DEFINED TORCH_CUDA_ARCH_LIST AND NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
  set(TORCH_CUDA_ARCH_LIST 9.0+PTX)
endif()
find_package(Torch 2.11 REQUIRED)
if(NOT Torch_VERSION VERSION_LESS 2.12)
  message(FATAL_ERROR "LibTorch ${Torch_VERSION} in ${Torch_DIR}: later series than 2.11 changed the classes of autograd. "
    "Name a LibTorch 2.11 by Torch_DIR, or let ./dev setup fetch one.")
endif()

set(torch_has_cuda OFF)
set(torch_has_nccl OFF)
if(TARGET torch_cuda)
  set(torch_has_cuda ON)
  get_target_property(definitions torch_cuda INTERFACE_COMPILE_DEFINITIONS)
  if("USE_C10D_NCCL" IN_LIST definitions)
    # nccl.h stands in the toolkit, or beside torch among the Python packages
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

# What a target links that calls them; each defines the macro of its name (TRAINKIT_WITH_CUDA, TRAINKIT_WITH_NCCL) for
# that target's sources, and is empty where it is off.
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
