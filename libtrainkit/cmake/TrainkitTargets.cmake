# Functions for every CMakeLists.txt of this project.

# Flags of our own code, never exported: warnings, sanitizers, processor. All code is position-independent, so that all
# targets can share a precompiled header. NDEBUG is defined in every configuration: LibTorch is built with it, and some of
# its classes (at::RecordFunction) have an additional member without it.
add_library(trainkit_flags INTERFACE)
target_compile_options(trainkit_flags INTERFACE -fPIC -Wall -Wextra $<$<BOOL:${TRAINKIT_WERROR}>:-Werror>
                                                $<$<BOOL:${TRAINKIT_NATIVE}>:-march=native>)
target_compile_definitions(trainkit_flags INTERFACE NDEBUG $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
target_link_libraries(trainkit_flags INTERFACE fmt::fmt-header-only)  # precompiled headers contain its macro
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # In unity builds GCC takes an included source for a header. The others: GCC 12 warns falsely about "text" +
  # std::string() (GCC bug 105651); clang, the default compiler, checks the same code.
  target_compile_options(trainkit_flags INTERFACE -Wno-subobject-linkage -Wno-stringop-overflow -Wno-array-bounds
                                                  -Wno-restrict -Wno-maybe-uninitialized)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  # -Wno-psabi: vectors are passed only to inlined functions. -fno-pch-timestamp lets ccache cache precompiled headers.
  target_compile_options(trainkit_flags INTERFACE -Wno-psabi -fclang-abi-compat=17 "SHELL:-Xclang -fno-pch-timestamp")
endif()
if(TRAINKIT_SANITIZE)
  target_compile_options(trainkit_flags INTERFACE -fsanitize=${TRAINKIT_SANITIZE} -fno-sanitize-recover=all
                                                  -fno-omit-frame-pointer -g1)
  target_link_options(trainkit_flags INTERFACE -fsanitize=${TRAINKIT_SANITIZE})
  foreach(sanitizer address thread)  # define GCC's macros for clang, which lacks them
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang AND TRAINKIT_SANITIZE MATCHES ${sanitizer})
      string(TOUPPER ${sanitizer} upper)
      target_compile_definitions(trainkit_flags INTERFACE __SANITIZE_${upper}__=1)
    endif()
  endforeach()
endif()

# Flags of tests, their programs and the programs of the documentation: short compile time instead of fast code. Targets
# with these flags share the precompiled header of the tests.
add_library(trainkit_light_flags INTERFACE)
target_link_libraries(trainkit_light_flags INTERFACE trainkit_flags)
target_compile_options(trainkit_light_flags INTERFACE $<$<CONFIG:Release>:-O0>)

# LibTorch's headers take most of the compile time. A precompiled header without our own headers (target trainkit_pch)
# parses them once, and unity builds compile several sources of a target as one.
option(TRAINKIT_PCH "Compile with precompiled headers" ON)
option(TRAINKIT_UNITY "Compile several files of a target as one" ON)

# trainkit_compile_fast(TARGET [PCH target] [FILES_EACH n]): uses both for the sources of TARGET.
function(trainkit_compile_fast TARGET)
  cmake_parse_arguments(ARG "" "PCH;FILES_EACH" "" ${ARGN})
  if(NOT ARG_PCH)
    set(ARG_PCH trainkit_pch)
  endif()
  if(NOT ARG_FILES_EACH)
    set(ARG_FILES_EACH 18)
  endif()
  if(TRAINKIT_PCH)
    target_precompile_headers(${TARGET} REUSE_FROM ${ARG_PCH})
  endif()
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ${TRAINKIT_UNITY} UNITY_BUILD_BATCH_SIZE ${ARG_FILES_EACH})
endfunction()

# trainkit_cuda_object(FILE OUT): compiles a .cu file to an object with the flags of third_party/torch.cmake and sets OUT
# to its path. The file must not include LibTorch's headers.
# This is a custom command because CMake's CUDA language would turn every program that links us into a CUDA program, with
# a second copy of the CUDA runtime in addition to LibTorch's.
function(trainkit_cuda_object FILE OUT)
  get_filename_component(stem ${FILE} NAME_WE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${stem}.cu.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_CUDA_COMPILER} -ccbin ${TRAINKIT_CUDA_HOST_COMPILER} -std=c++17 -O3 ${TRAINKIT_KERNEL_FLAGS} -Xcompiler=-fPIC,-Wall
            -I${PROJECT_SOURCE_DIR}/libtrainkit/src -MD -MF ${object}.d -c ${FILE} -o ${object}
    DEPENDS ${FILE} DEPFILE ${object}.d COMMENT "Building CUDA object ${stem}.cu.o" VERBATIM)
  set_property(GLOBAL APPEND PROPERTY TRAINKIT_CUDA_OBJECTS ${object})
  set_property(GLOBAL APPEND PROPERTY TRAINKIT_CUDA_FILES ${FILE})
  set(${OUT} ${object} PARENT_SCOPE)
endfunction()

# trainkit_module(NAME SOURCES a.cpp ... HEADERS a.h ... DEPENDS core ... [CUDA_SOURCES a.cu ...] [PUBLIC lib ...]
#                 [PRIVATE lib ...])
# Adds a module of the library: target trainkit_NAME, alias trainkit::NAME. Sources are relative to src/NAME, headers to
# include/trainkit/NAME. CUDA_SOURCES are used only with CUDA. DEPENDS lists lower modules; PUBLIC and PRIVATE list
# third-party targets.
function(trainkit_module NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;CUDA_SOURCES;DEPENDS;PUBLIC;PRIVATE" ${ARGN})
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
  # Do not export header-only libraries that only our sources use: users of the library do not need them.
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
  trainkit_compile_fast(trainkit_${NAME})
  set_target_properties(trainkit_${NAME} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  if(TRAINKIT_INSTALL)
    install(TARGETS trainkit_${NAME} EXPORT trainkitTargets FILE_SET HEADERS)
  endif()
  set_property(GLOBAL APPEND PROPERTY TRAINKIT_MODULES ${NAME})
endfunction()

# trainkit_late_cuda(TARGET): lets a program start without libtorch_cuda.so and load it only on a machine with NVIDIA's
# driver. See Note [Late CUDA] in libtrainkit/src/core/device/late_cuda.cpp.
find_program(TRAINKIT_PATCHELF patchelf)
function(trainkit_late_cuda TARGET)
  if(TRAINKIT_WITH_CUDA AND TRAINKIT_PATCHELF AND NOT TRAINKIT_SANITIZE)
    target_link_libraries(${TARGET} PRIVATE trainkit_core)
    target_link_options(${TARGET} PRIVATE LINKER:--undefined=trainkit_load_torch_cuda_for_driver)
    add_custom_command(TARGET ${TARGET} POST_BUILD COMMAND ${TRAINKIT_PATCHELF} --remove-needed libtorch.so
                       --remove-needed libtorch_cuda.so $<TARGET_FILE:${TARGET}> VERBATIM)
  endif()
endfunction()

# trainkit_end_fast(TARGET): lets a program end without LibTorch's destructors (apps/fast_end.cpp).
if(NOT TRAINKIT_SANITIZE)  # sanitizers report leaks at the end
  add_library(trainkit_fast_end OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/apps/fast_end.cpp)
  target_link_libraries(trainkit_fast_end PRIVATE trainkit_flags)
endif()
function(trainkit_end_fast TARGET)
  target_link_libraries(${TARGET} PRIVATE $<TARGET_NAME_IF_EXISTS:trainkit_fast_end>)
endfunction()

# trainkit_executable(NAME [LIGHT] [ENDS_AS_USUAL] SOURCES ... LIBRARIES ...): adds a program in build/bin. LIGHT uses
# trainkit_light_flags; ENDS_AS_USUAL leaves out trainkit_end_fast.
function(trainkit_executable NAME)
  cmake_parse_arguments(ARG "LIGHT;ENDS_AS_USUAL" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  if(ARG_LIGHT)
    target_link_libraries(${NAME} PRIVATE ${ARG_LIBRARIES} trainkit_light_flags)
    trainkit_compile_fast(${NAME} PCH trainkit_test_pch)
  else()
    target_link_libraries(${NAME} PRIVATE ${ARG_LIBRARIES} trainkit_flags)
    trainkit_compile_fast(${NAME})
  endif()
  trainkit_late_cuda(${NAME})
  if(NOT ARG_ENDS_AS_USUAL)
    trainkit_end_fast(${NAME})
  endif()
endfunction()

set(TRAINKIT_TEST_TIMEOUT 600)
if(TRAINKIT_SANITIZE)
  set(TRAINKIT_TEST_TIMEOUT 2400)
endif()

# trainkit_tests(MODULE FILES a_test.cpp ... [LIBRARIES ...] [LABELS ...])
# Adds the program test_MODULE. Each file is one CTest test, unit.MODULE.a, with the cases of that file.
# A case that cannot run prints "skipped: <reason>" (TRAINKIT_SKIP in tests/test_util.h), and CTest reports it as skipped.
function(trainkit_tests MODULE)
  cmake_parse_arguments(ARG "" "" "FILES;LIBRARIES;LABELS" ${ARGN})
  add_executable(test_${MODULE} ${ARG_FILES})
  target_include_directories(test_${MODULE} PRIVATE ${PROJECT_SOURCE_DIR}/libtrainkit/src)  # internal headers
  target_link_libraries(test_${MODULE} PRIVATE trainkit_test_main ${ARG_LIBRARIES} trainkit_light_flags)
  trainkit_compile_fast(test_${MODULE} PCH trainkit_test_pch FILES_EACH 8)
  trainkit_late_cuda(test_${MODULE})
  trainkit_end_fast(test_${MODULE})
  foreach(file ${ARG_FILES})
    get_filename_component(stem ${file} NAME_WE)
    string(REGEX REPLACE "_test$" "" header ${stem})
    add_test(NAME unit.${MODULE}.${header} COMMAND test_${MODULE} "-#" ${TRAINKIT_CATCH2_FAIL_IF_NONE} "[#${stem}]")
    set_tests_properties(unit.${MODULE}.${header} PROPERTIES LABELS "unit;${ARG_LABELS}" TIMEOUT ${TRAINKIT_TEST_TIMEOUT}
                         SKIP_REGULAR_EXPRESSION "(^|\n)skipped: .*All tests passed")  # else a skip would hide a failure
    if(NOT "${MODULE}.${stem}" MATCHES "cuda")  # a run without --device would use an available GPU
      set_tests_properties(unit.${MODULE}.${header} PROPERTIES ENVIRONMENT "CUDA_VISIBLE_DEVICES=")
    endif()
  endforeach()
endfunction()

# trainkit_benchmarks(MODULE FILES ... [LIBRARIES ...]): adds the Google Benchmark suite bench_MODULE to the target
# `benchmarks`, which is not built by default, and a test that runs it for 0.01 s.
function(trainkit_benchmarks MODULE)
  cmake_parse_arguments(ARG "" "" "FILES;LIBRARIES" ${ARGN})
  trainkit_executable(bench_${MODULE} SOURCES ${ARG_FILES}
                      LIBRARIES benchmark::benchmark_main ${ARG_LIBRARIES} $<TARGET_NAME_IF_EXISTS:trainkit_allocator>)
  target_include_directories(bench_${MODULE} PRIVATE ${PROJECT_SOURCE_DIR}/bench
                                                     ${PROJECT_SOURCE_DIR}/libtrainkit/src)  # headers that are not public
  set_target_properties(bench_${MODULE} PROPERTIES EXCLUDE_FROM_ALL ON)
  if(NOT TARGET benchmarks)
    add_custom_target(benchmarks)
  endif()
  add_dependencies(benchmarks bench_${MODULE})
  if(TRAINKIT_BUILD_TESTS)
    add_test(NAME bench.${MODULE} COMMAND bench_${MODULE} --benchmark_min_time=0.01)
    set_tests_properties(bench.${MODULE} PROPERTIES LABELS "bench" TIMEOUT 600
                         ENVIRONMENT TRAINKIT_BENCH_QUICK=1)
  endif()
endfunction()
