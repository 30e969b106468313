#pragma once
/// Work shared by LibTorch's threads, under any compiler.

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace trainkit::detail {

/// Calls f(begin of a part, end of a part) for parts of [begin, end) of at least `grain_size` on LibTorch's intra-op
/// threads and waits for them, as at::parallel_for does. That one is an OpenMP pragma: it runs on one thread in a file
/// that is compiled without OpenMP, and on threads of a second runtime under a compiler that brings its own. This one
/// calls the OpenMP runtime that LibTorch has loaded. Under ThreadSanitizer, which does not see what that runtime's
/// threads wait for, the calling thread does all the work. Rethrows the first exception that f throws.
void parallel_for(int64_t begin, int64_t end, int64_t grain_size, c10::function_ref<void(int64_t, int64_t)> f);

}  // namespace trainkit::detail
