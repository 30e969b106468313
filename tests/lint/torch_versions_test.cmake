# Tests third_party/torch_versions.cmake: cmake -DSOURCE_DIR=... -P this
cmake_minimum_required(VERSION 3.25)
include(${SOURCE_DIR}/third_party/torch_versions.cmake)
if(VERSION)  # a separate process, because it may fail
  trainkit_check_torch(${VERSION} /torch/share/cmake/Torch)
  message(STATUS "series ${TRAINKIT_TORCH_SERIES}")
  return()
endif()

# expect(VERSION FAILS EXPRESSION): what a LibTorch of this version prints matches the expression.
function(expect VERSION FAILS EXPRESSION)
  execute_process(COMMAND ${CMAKE_COMMAND} -DVERSION=${VERSION} -DSOURCE_DIR=${SOURCE_DIR} -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
                  RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
  if((FAILS AND result EQUAL 0) OR (NOT FAILS AND result) OR NOT text MATCHES "${EXPRESSION}")
    message(SEND_ERROR "LibTorch ${VERSION}: ${result} ${text}")
  endif()
endfunction()

set(range "${TRAINKIT_TORCH_OLDEST} to ${TRAINKIT_TORCH_NEWEST}")
expect(2.9.1 TRUE "unsuitable version \\(got 2.9.1, expected ${range}\\).*Set Torch_DIR")
expect(1.13.0 TRUE "expected ${range}")
expect(${TRAINKIT_TORCH_OLDEST}.0 FALSE "^-- series ${TRAINKIT_TORCH_OLDEST} $")
expect(${TRAINKIT_TORCH_NEWEST}.7 FALSE "^-- series ${TRAINKIT_TORCH_NEWEST} $")
expect(2.110.0a0 FALSE "LibTorch 2.110.0a0 in /torch/share/cmake/Torch is newer than ${TRAINKIT_TORCH_NEWEST}.*series 2.110 $")
