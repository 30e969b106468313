# Selects the GPU architectures for CUDA kernels. Defines only functions, since tests/lint/cuda_architectures_test.cmake
# also calls them.

# Default architectures, ascending: Turing, A100, RTX 30, RTX 40, H100, B200, RTX 50. Later GPUs use the PTX of the last.
set(TRAINKIT_DEFAULT_ARCHITECTURES 7.5 8.0 8.6 8.9 9.0 10.0 12.0)

# Sets OUT to the architectures that nvcc can compile for: "75;80;...".
function(trainkit_nvcc_architectures NVCC OUT)
  execute_process(COMMAND ${NVCC} --list-gpu-code OUTPUT_VARIABLE text ERROR_VARIABLE error RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${NVCC} --list-gpu-code failed: ${error}")
  endif()
  string(REGEX MATCHALL "sm_[0-9]+" known "${text}")
  string(REPLACE "sm_" "" known "${known}")
  list(SORT known COMPARE NATURAL)
  set(${OUT} ${known} PARENT_SCOPE)
endfunction()

# Sets OUT to the names of architectures: 120 becomes "12.0".
function(trainkit_architecture_text NUMBERS OUT)
  string(REGEX REPLACE "([0-9])([af]?)(;|$)" ".\\1\\2\\3" text "${NUMBERS}")
  string(REPLACE ";" " " text "${text}")
  set(${OUT} "${text}" PARENT_SCOPE)
endfunction()

# Sets OUT to the default list, in the format of TORCH_CUDA_ARCH_LIST, without architectures that this nvcc does not know.
function(trainkit_default_architectures NVCC OUT)
  trainkit_nvcc_architectures(${NVCC} known)
  set(all)
  foreach(architecture ${TRAINKIT_DEFAULT_ARCHITECTURES})
    string(REPLACE "." "" number ${architecture})
    if(number IN_LIST known)
      list(APPEND all ${architecture})
    endif()
  endforeach()
  if(NOT all)
    message(FATAL_ERROR "${NVCC} compiles for none of ${TRAINKIT_DEFAULT_ARCHITECTURES}: set TORCH_CUDA_ARCH_LIST")
  endif()
  list(JOIN all ";" all)
  set(${OUT} "${all}+PTX" PARENT_SCOPE)
endfunction()

# Converts nvcc's architecture flags, as LibTorch's package makes them: sets OUT_FLAGS to the flags to use, and OUT_CODES
# to the resulting codes ("sm_75 sm_80 compute_80", separated by spaces). Fails if nvcc does not know an architecture.
#
# Architectures of one major version share the PTX of the first one. So nvcc's front end, which takes more than half of the
# time, runs once for 8.0, 8.6 and 8.9. Therefore no kernel may depend on the minor version.
function(trainkit_kernel_flags NVCC FLAGS OUT_FLAGS OUT_CODES)
  trainkit_nvcc_architectures(${NVCC} known)
  string(REGEX MATCHALL "arch=compute_[0-9]+[af]?,code=[a-z]+_[0-9]+[af]?" pairs "${FLAGS}")
  set(flags)
  set(codes)
  set(unknown)
  foreach(pair ${pairs})
    string(REGEX MATCH "arch=compute_([0-9]+[af]?),code=(.*_([0-9]+)([af]?))" all "${pair}")
    set(front ${CMAKE_MATCH_1})
    set(code ${CMAKE_MATCH_2})
    set(number ${CMAKE_MATCH_3})
    set(suffix "${CMAKE_MATCH_4}")
    if(NOT number IN_LIST known)
      list(APPEND unknown ${number}${suffix})
    endif()
    if(code MATCHES "^sm_" AND front STREQUAL number)
      math(EXPR major "${number} / 10")
      if(NOT DEFINED first_of_${major})
        set(first_of_${major} ${number})
      endif()
      if(NOT number LESS first_of_${major})
        set(front ${first_of_${major}})
      endif()
    endif()
    list(APPEND flags -gencode arch=compute_${front},code=${code})
    list(APPEND codes ${code})
  endforeach()
  if(unknown)
    list(REMOVE_DUPLICATES unknown)
    trainkit_architecture_text("${unknown}" unknown)
    trainkit_architecture_text("${known}" known)
    message(FATAL_ERROR "TORCH_CUDA_ARCH_LIST: ${NVCC} cannot compile for ${unknown}. It can compile for ${known}. "
      "Remove the others from the list; on such a GPU operations of LibTorch are used instead of our kernels.")
  endif()
  list(JOIN codes " " codes)
  set(${OUT_FLAGS} ${flags} PARENT_SCOPE)
  set(${OUT_CODES} "${codes}" PARENT_SCOPE)
endfunction()
