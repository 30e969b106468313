# The few functions that every CMakeLists.txt of this project is written with.

# Flags of our own code, never exported: warnings, sanitizers, processor. Position-independent code everywhere, so that
# all targets can share a precompiled header. NDEBUG in every configuration: LibTorch is built with it, and some of its
# classes (at::RecordFunction) have a member more without it.
add_library(trainkit_flags INTERFACE)
target_compile_options(trainkit_flags INTERFACE -fPIC -Wall -Wextra $<$<BOOL:${TRAINKIT_WERROR}>:-Werror>
                                                $<$<BOOL:${TRAINKIT_NATIVE}>:-march=native>)
target_compile_definitions(trainkit_flags INTERFACE NDEBUG $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
target_link_libraries(trainkit_flags INTERFACE fmt::fmt-header-only)  # its macro is part of the precompiled headers
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # takes a source that is compiled together with others for a header
  target_compile_options(trainkit_flags INTERFACE -Wno-subobject-linkage)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  # -Wpsabi: vectors are passed to inlined functions alone. The second option lets ccache keep precompiled headers.
  target_compile_options(trainkit_flags INTERFACE -Wno-psabi -fclang-abi-compat=17 "SHELL:-Xclang -fno-pch-timestamp")
endif()
if(TRAINKIT_SANITIZE)
  target_compile_options(trainkit_flags INTERFACE -fsanitize=${TRAINKIT_SANITIZE} -fno-sanitize-recover=all
                                                  -fno-omit-frame-pointer -g1)
  target_link_options(trainkit_flags INTERFACE -fsanitize=${TRAINKIT_SANITIZE})
  foreach(sanitizer address thread)  # GCC's macros, which clang does not define
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang AND TRAINKIT_SANITIZE MATCHES ${sanitizer})
      string(TOUPPER ${sanitizer} upper)
      target_compile_definitions(trainkit_flags INTERFACE __SANITIZE_${upper}__=1)
    endif()
  endforeach()
endif()

# Tests, fuzz replays and the programs of the documentation: compiled fast rather than made fast.
add_library(trainkit_light_flags INTERFACE)
target_link_libraries(trainkit_light_flags INTERFACE trainkit_flags)
target_compile_options(trainkit_light_flags INTERFACE $<$<CONFIG:Release>:-O1>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(trainkit_light_flags INTERFACE -Wno-maybe-uninitialized)  # wrong about std::optional with -O1
endif()

# LibTorch's headers take most of a compiler's time. They are parsed once, in a precompiled header without anything of
# ours (target trainkit_pch), and the sources of a target are compiled several files at a time.
option(TRAINKIT_PCH "Compile with precompiled headers" ON)
option(TRAINKIT_UNITY "Compile several files of a target as one" ON)

# trainkit_compile_fast(TARGET [PCH target] [FILES_EACH n]): the above for the sources of TARGET.
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
  set_property(GLOBAL APPEND PROPERTY TRAINKIT_CUDA_FILES ${FILE})
  set(${OUT} ${object} PARENT_SCOPE)
endfunction()

# trainkit_module(NAME SOURCES a.cpp ... HEADERS a.h ... DEPENDS core ... [CUDA_SOURCES a.cu ...] [PUBLIC lib ...]
#                 [PRIVATE lib ...])
# One module of the library: target trainkit_NAME, alias trainkit::NAME. Sources are relative to src/NAME, headers to
# include/trainkit/NAME. CUDA_SOURCES are left out without CUDA. DEPENDS names modules below it; PUBLIC and PRIVATE name
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
  trainkit_compile_fast(trainkit_${NAME})
  set_target_properties(trainkit_${NAME} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  install(TARGETS trainkit_${NAME} EXPORT trainkitTargets FILE_SET HEADERS)
  set_property(GLOBAL APPEND PROPERTY TRAINKIT_MODULES ${NAME})
endfunction()

# trainkit_executable(NAME [LIGHT] SOURCES ... LIBRARIES ...): a program of ours in build/bin; LIGHT: see above.
function(trainkit_executable NAME)
  cmake_parse_arguments(ARG "LIGHT" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_link_libraries(${NAME} PRIVATE ${ARG_LIBRARIES} $<IF:$<BOOL:${ARG_LIGHT}>,trainkit_light_flags,trainkit_flags>)
  trainkit_compile_fast(${NAME})
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
  add_executable(test_${MODULE} ${ARG_FILES})
  target_include_directories(test_${MODULE} PRIVATE ${PROJECT_SOURCE_DIR}/libtrainkit/src)  # headers that are not public
  target_link_libraries(test_${MODULE} PRIVATE trainkit_test_main ${ARG_LIBRARIES} trainkit_light_flags)
  trainkit_compile_fast(test_${MODULE} PCH trainkit_test_pch FILES_EACH 8)
  foreach(file ${ARG_FILES})
    get_filename_component(stem ${file} NAME_WE)
    string(REGEX REPLACE "_test$" "" header ${stem})
    add_test(NAME unit.${MODULE}.${header} COMMAND test_${MODULE} "-#" -w NoTests "[#${stem}]")
    set_tests_properties(unit.${MODULE}.${header} PROPERTIES LABELS "unit;${ARG_LABELS}" TIMEOUT ${TRAINKIT_TEST_TIMEOUT}
                         SKIP_REGULAR_EXPRESSION "(^|\n)skipped: ")
    if(NOT "${MODULE}.${stem}" MATCHES "cuda")  # a run that names no device takes a GPU that is there
      set_tests_properties(unit.${MODULE}.${header} PROPERTIES ENVIRONMENT "CUDA_VISIBLE_DEVICES=")
    endif()
  endforeach()
endfunction()

# trainkit_benchmarks(MODULE FILES ... [LIBRARIES ...]): the suite bench_MODULE, on Google Benchmark; also a 0.01 s test.
# Part of the target `benchmarks`, not of the default one.
function(trainkit_benchmarks MODULE)
  cmake_parse_arguments(ARG "" "" "FILES;LIBRARIES" ${ARGN})
  trainkit_executable(bench_${MODULE} SOURCES ${ARG_FILES}
                      LIBRARIES benchmark::benchmark_main ${ARG_LIBRARIES} $<TARGET_NAME_IF_EXISTS:trainkit_allocator>)
  set_target_properties(bench_${MODULE} PROPERTIES EXCLUDE_FROM_ALL ON UNITY_BUILD OFF)
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
