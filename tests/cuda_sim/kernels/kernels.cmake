# cuda_sim_kernels: the bodies of the library's CUDA kernels, compiled for the host, and the code that runs them. An
# OBJECT library for the shared library of the simulated device; the library's own launch functions, which are compiled
# again, stay hidden in it.
#
#   cuda_sim_add_kernels(TARGET INCLUDES directory ... FILES a.cu ...)
#
# The compiler adds a call before each load and store of a kernel, which checks and records it.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(CUDA_SIM_KERNELS_DIR ${CMAKE_CURRENT_LIST_DIR})

# -fsanitize=kernel-address only calls functions, has no runtime, and allows other function names, so that it does not
# conflict with the real sanitizers. It includes copies of structures (float4), which -fsanitize-coverage=trace-loads
# omits.
set(CUDA_SIM_CHECKS -fno-sanitize=all -fsanitize=kernel-address)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  foreach(option instrumentation-with-call-threshold=0 memory-access-callback-prefix=__cuda_sim_ kernel-mem-intrinsic-prefix=1
                 stack=0 globals=0 opt=0 constructor-kind=none)
    list(APPEND CUDA_SIM_CHECKS -mllvm -asan-${option})
  endforeach()
else()  # GCC calls them __asan_load4_noabort, ...
  foreach(option instrumentation-with-call-threshold=0 stack=0 globals=0)
    list(APPEND CUDA_SIM_CHECKS --param=asan-${option})
  endforeach()
endif()

include(CheckCXXSourceRuns)
check_cxx_source_runs("int main() { return __builtin_cpu_supports(\"fma\") ? 0 : 1; }" CUDA_SIM_HAS_FMA)
set(CUDA_SIM_FMA)
if(CUDA_SIM_HAS_FMA)
  set(CUDA_SIM_FMA -mfma -ffp-contract=fast)
endif()

function(cuda_sim_add_kernels TARGET)
  cmake_parse_arguments(ARG "" "" "INCLUDES;FILES" ${ARGN})
  set(generated)
  foreach(file ${ARG_FILES})
    get_filename_component(stem ${file} NAME_WE)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/${stem}.on_host.cpp)
    add_custom_command(
      OUTPUT ${source}
      COMMAND Python3::Interpreter ${CUDA_SIM_KERNELS_DIR}/kernels_from_cu.py ${file} ${source}
      DEPENDS ${file} ${CUDA_SIM_KERNELS_DIR}/kernels_from_cu.py COMMENT "Generating ${stem}.on_host.cpp" VERBATIM)
    list(APPEND generated ${source})
    get_filename_component(directory ${file} DIRECTORY)
    set_property(SOURCE ${source} APPEND PROPERTY INCLUDE_DIRECTORIES ${directory})
  endforeach()
  set_property(SOURCE ${generated} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  set_property(SOURCE ${generated} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  # Products and sums become fused multiply-adds, as nvcc makes them: their rounding differs.
  set(options -O2 ${CUDA_SIM_FMA} -Wno-unused -Wno-unused-parameter -Wno-unknown-pragmas ${CUDA_SIM_CHECKS})
  set_property(SOURCE ${generated} PROPERTY COMPILE_OPTIONS ${options})
  target_sources(${TARGET} PRIVATE ${generated})
  target_include_directories(${TARGET} PRIVATE ${CUDA_SIM_KERNELS_DIR} ${ARG_INCLUDES})
endfunction()

add_library(cuda_sim_kernels OBJECT ${CUDA_SIM_KERNELS_DIR}/fibers.cpp ${CUDA_SIM_KERNELS_DIR}/kernels.cpp
                                    ${CUDA_SIM_KERNELS_DIR}/kernels_block.cpp ${CUDA_SIM_KERNELS_DIR}/kernels_memory.cpp)
target_compile_features(cuda_sim_kernels PUBLIC cxx_std_20)
target_include_directories(cuda_sim_kernels SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
set_target_properties(cuda_sim_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                                  VISIBILITY_INLINES_HIDDEN ON)
# ThreadSanitizer does not know fibres as threads.
target_compile_options(cuda_sim_kernels PRIVATE $<$<CXX_COMPILER_ID:Clang,GNU>:-fno-sanitize=thread>
                                                -ftls-model=initial-exec)  # kernels read thread_local threadIdx often
