# The few functions that every CMakeLists.txt of this project is written with.

# Flags of our own code, never exported: warnings, sanitizers, processor.
add_library(trainkit_flags INTERFACE)
target_compile_options(trainkit_flags INTERFACE -Wall -Wextra $<$<BOOL:${TRAINKIT_WERROR}>:-Werror>
                                                $<$<BOOL:${TRAINKIT_NATIVE}>:-march=native>)
if(TRAINKIT_SANITIZE)
  target_compile_options(trainkit_flags INTERFACE -fsanitize=${TRAINKIT_SANITIZE} -fno-sanitize-recover=all
                                                  -fno-omit-frame-pointer -g1)
  target_link_options(trainkit_flags INTERFACE -fsanitize=${TRAINKIT_SANITIZE})
endif()

# trainkit_cuda_object(FILE OUT): compiles a .cu of plain kernels (no header of LibTorch) to an object and names it in OUT,
# with the flags of third_party/torch.cmake.
# A command of our own, because CMake's CUDA language would make every program that links us a CUDA program, with a
# second copy of CUDA's runtime beside LibTorch's.
function(trainkit_cuda_object FILE OUT)
  get_filename_component(stem ${FILE} NAME_WE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${stem}.cu.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_CUDA_COMPILER} -ccbin ${TRAINKIT_CUDA_HOST_COMPILER} -std=c++17 -O3 ${TRAINKIT_KERNEL_FLAGS} -Xcompiler=-fPIC,-Wall
            -I${PROJECT_SOURCE_DIR}/libtrainkit/src -MD -MF ${object}.d -c ${FILE} -o ${object}
    DEPENDS ${FILE} DEPFILE ${object}.d COMMENT "Building CUDA object ${stem}.cu.o" VERBATIM)
  set_property(GLOBAL APPEND PROPERTY TRAINKIT_CUDA_OBJECTS ${object})
  set(${OUT} ${object} PARENT_SCOPE)
endfunction()

# at::parallel_for is OpenMP's, and runs on one thread in a file that is compiled without it (core/parallel.h). LibTorch's
# threads are those of GCC's runtime; ThreadSanitizer does not see what they wait for.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND NOT TRAINKIT_SANITIZE MATCHES thread)
  set(TRAINKIT_OPENMP -fopenmp)
endif()

# trainkit_module(NAME SOURCES a.cpp ... HEADERS a.h ... DEPENDS core ... [KERNELS b.cpp ...] [CUDA_SOURCES a.cu ...]
#                 [PUBLIC lib ...] [PRIVATE lib ...])
# One module of the library: target trainkit_NAME, alias trainkit::NAME. Sources are relative to src/NAME, headers to
# include/trainkit/NAME. KERNELS are sources whose work LibTorch's threads share. CUDA_SOURCES are left out without CUDA.
# DEPENDS names modules below it; PUBLIC and PRIVATE name third-party targets.
function(trainkit_module NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;KERNELS;CUDA_SOURCES;DEPENDS;PUBLIC;PRIVATE" ${ARGN})
  list(APPEND ARG_SOURCES ${ARG_KERNELS})
  list(TRANSFORM ARG_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/libtrainkit/src/${NAME}/)
  list(TRANSFORM ARG_HEADERS PREPEND ${PROJECT_SOURCE_DIR}/libtrainkit/include/trainkit/${NAME}/)
  list(TRANSFORM ARG_DEPENDS PREPEND trainkit_)
  if(TRAINKIT_WITH_CUDA)
    foreach(source ${ARG_CUDA_SOURCES})
      trainkit_cuda_object(${PROJECT_SOURCE_DIR}/libtrainkit/src/${NAME}/${source} object)
      list(APPEND ARG_SOURCES ${object})
    endforeach()
  endif()
  add_library(trainkit_${NAME} STATIC ${ARG_SOURCES})
  add_library(trainkit::${NAME} ALIAS trainkit_${NAME})
  set_target_properties(trainkit_${NAME} PROPERTIES EXPORT_NAME ${NAME} POSITION_INDEPENDENT_CODE ON)
  target_compile_features(trainkit_${NAME} PUBLIC cxx_std_20)
  target_sources(trainkit_${NAME} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/libtrainkit/include
                                         FILES ${ARG_HEADERS})
  target_include_directories(trainkit_${NAME} PRIVATE ${PROJECT_SOURCE_DIR}/libtrainkit/src)
  # a header-only library that our sources alone use is nothing that those who link us need to have
  set(private)
  foreach(library ${ARG_PRIVATE})
    if(TARGET ${library})
      get_target_property(imported ${library} IMPORTED)
      get_target_property(type ${library} TYPE)
      get_target_property(further ${library} INTERFACE_LINK_LIBRARIES)
      if(imported AND type STREQUAL INTERFACE_LIBRARY AND NOT further)
        set(library $<BUILD_INTERFACE:${library}>)
      endif()
    endif()
    list(APPEND private ${library})
  endforeach()
  target_link_libraries(trainkit_${NAME} PUBLIC ${ARG_DEPENDS} ${ARG_PUBLIC}
                                         PRIVATE ${private} $<BUILD_INTERFACE:trainkit_flags>)
  if(ARG_KERNELS)
    list(TRANSFORM ARG_KERNELS PREPEND ${PROJECT_SOURCE_DIR}/libtrainkit/src/${NAME}/)
    # at::RecordFunction has a member more without NDEBUG, which the LibTorch wheel is built with.
    set_source_files_properties(${ARG_KERNELS} TARGET_DIRECTORY trainkit_${NAME}
                                PROPERTIES COMPILE_OPTIONS "${TRAINKIT_OPENMP}" COMPILE_DEFINITIONS NDEBUG)
    target_link_libraries(trainkit_${NAME} PRIVATE $<$<BOOL:${TRAINKIT_OPENMP}>:gomp>)
  endif()
  set_target_properties(trainkit_${NAME} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  install(TARGETS trainkit_${NAME} EXPORT trainkitTargets FILE_SET HEADERS)
  set_property(GLOBAL APPEND PROPERTY TRAINKIT_MODULES ${NAME})
endfunction()

# trainkit_executable(NAME SOURCES ... LIBRARIES ...): a program of ours in build/bin.
function(trainkit_executable NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_link_libraries(${NAME} PRIVATE ${ARG_LIBRARIES} trainkit_flags)
endfunction()

set(TRAINKIT_TEST_TIMEOUT 600)
if(TRAINKIT_SANITIZE)
  set(TRAINKIT_TEST_TIMEOUT 2400)
endif()

# trainkit_tests(MODULE FILES a_test.cpp ... [LIBRARIES ...] [LABELS ...])
# One program test_MODULE; each file is one CTest entry, unit.MODULE.a, whose cases are those of that file.
# A case that cannot run here prints "skipped: why" (TRAINKIT_SKIP in tests/test_util.h) and CTest reports it so.
function(trainkit_tests MODULE)
  cmake_parse_arguments(ARG "" "" "FILES;LIBRARIES;LABELS" ${ARGN})
  trainkit_executable(test_${MODULE} SOURCES ${ARG_FILES} LIBRARIES trainkit_test_main ${ARG_LIBRARIES})
  target_precompile_headers(test_${MODULE} REUSE_FROM trainkit_test_pch)
  foreach(file ${ARG_FILES})
    get_filename_component(stem ${file} NAME_WE)
    string(REGEX REPLACE "_test$" "" header ${stem})
    add_test(NAME unit.${MODULE}.${header} COMMAND test_${MODULE} "-#" -w NoTests "[#${stem}]")
    set_tests_properties(unit.${MODULE}.${header} PROPERTIES LABELS "unit;${ARG_LABELS}" TIMEOUT ${TRAINKIT_TEST_TIMEOUT}
                         SKIP_REGULAR_EXPRESSION "(^|\n)skipped: ")
  endforeach()
endfunction()

# trainkit_benchmarks(MODULE FILES ... [LIBRARIES ...]): the suite bench_MODULE, on Google Benchmark; also a 0.01 s test.
function(trainkit_benchmarks MODULE)
  cmake_parse_arguments(ARG "" "" "FILES;LIBRARIES" ${ARGN})
  trainkit_executable(bench_${MODULE} SOURCES ${ARG_FILES}
                      LIBRARIES benchmark::benchmark_main ${ARG_LIBRARIES} $<TARGET_NAME_IF_EXISTS:trainkit_allocator>)
  if(TRAINKIT_BUILD_TESTS)
    add_test(NAME bench.${MODULE} COMMAND bench_${MODULE} --benchmark_min_time=0.01)
    set_tests_properties(bench.${MODULE} PROPERTIES LABELS "bench" TIMEOUT 600
                         ENVIRONMENT TRAINKIT_BENCH_QUICK=1)
  endif()
endfunction()
