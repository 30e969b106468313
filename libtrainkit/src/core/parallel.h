#pragma once
/// at::parallel_for, for the files that CMake lists as KERNELS: in another it would run on one thread, and say nothing.

#include <ATen/Parallel.h>

#if defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && !defined(_OPENMP)
#error "this file calls at::parallel_for: list it under KERNELS in its CMakeLists.txt"
#endif
