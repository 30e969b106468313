# Tests third_party/cuda_architectures.cmake with this machine's nvcc: cmake -DNVCC=... -DSOURCE_DIR=... -P this
cmake_minimum_required(VERSION 3.25)
if(CASE STREQUAL unknown)  # a separate process, because it must fail
  include(${SOURCE_DIR}/third_party/cuda_architectures.cmake)
  trainkit_kernel_flags(${NVCC} "-gencode;arch=compute_50,code=sm_50;-gencode;arch=compute_999,code=compute_999" flags codes)
  return()
endif()
if(NOT EXISTS "${NVCC}")
  message("skipped: no nvcc")
  return()
endif()
include(${SOURCE_DIR}/third_party/cuda_architectures.cmake)

function(expect WHAT IS EXPECTED)
  if(NOT "${IS}" STREQUAL "${EXPECTED}")
    message(SEND_ERROR "${WHAT}: got '${IS}', expected '${EXPECTED}'")
  endif()
endfunction()

# The default: the architectures of the list that this nvcc supports, with PTX for the last.
trainkit_nvcc_architectures(${NVCC} known)
trainkit_default_architectures(${NVCC} default)
if(NOT default MATCHES "^[0-9.;]+\\+PTX$")
  message(SEND_ERROR "default: '${default}'")
endif()
string(REPLACE "+PTX" "" plain "${default}")
foreach(architecture ${plain})
  if(NOT architecture IN_LIST TRAINKIT_DEFAULT_ARCHITECTURES)
    message(SEND_ERROR "${architecture} is not in the default list")
  endif()
endforeach()

# Readable names.
trainkit_architecture_text("75;90a;120" text)
expect("text" "${text}" "7.5 9.0a 12.0")

# Flags: machine code of one major version comes from one PTX; other flags of the user stay.
trainkit_kernel_flags(${NVCC} "-gencode;arch=compute_80,code=sm_80;-gencode;arch=compute_86,code=sm_86;-gencode;arch=compute_90,code=sm_90;-gencode;arch=compute_90,code=compute_90"
                      flags codes)
expect("codes" "${codes}" "sm_80 sm_86 sm_90 compute_90")
expect("flags" "${flags}" "-gencode;arch=compute_80,code=sm_80;-gencode;arch=compute_80,code=sm_86;-gencode;arch=compute_90,code=sm_90;-gencode;arch=compute_90,code=compute_90")
trainkit_kernel_flags(${NVCC} "-gencode;arch=compute_89,code=sm_89;-gencode;arch=compute_80,code=sm_80;-gencode;arch=compute_90a,code=sm_90a;-gencode;arch=compute_80,code=sm_90"
                      flags codes)
expect("codes" "${codes}" "sm_89 sm_80 sm_90a sm_90")
expect("flags" "${flags}" "-gencode;arch=compute_89,code=sm_89;-gencode;arch=compute_80,code=sm_80;-gencode;arch=compute_90a,code=sm_90a;-gencode;arch=compute_80,code=sm_90")

# An architecture that nvcc does not support is an error with its name and the remedy.
execute_process(COMMAND ${CMAKE_COMMAND} -DCASE=unknown -DNVCC=${NVCC} -DSOURCE_DIR=${SOURCE_DIR} -P ${CMAKE_CURRENT_LIST_FILE}
                RESULT_VARIABLE result ERROR_VARIABLE error)
string(REGEX REPLACE "[ \n]+" " " error "${error}")
if(result EQUAL 0 OR NOT error MATCHES "cannot compile for .*99\\.9" OR NOT error MATCHES "Remove the others from the list")
  message(SEND_ERROR "an unknown architecture: ${result} ${error}")
endif()
