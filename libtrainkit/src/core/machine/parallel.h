#pragma once
/// A parallel loop on LibTorch's threads that works with any compiler.

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace trainkit::detail {

/// Calls f(begin, end) for parts of [begin, end) of at least `grain_size` elements on LibTorch's intra-op threads, and
/// waits for them, like at::parallel_for. Rethrows the first exception of f. Under ThreadSanitizer, which does not see
/// the synchronisation of the OpenMP runtime, the calling thread does all the work. See Note [OpenMP runtime].
void parallel_for(int64_t begin, int64_t end, int64_t grain_size, c10::function_ref<void(int64_t, int64_t)> f);

/// Number of processors of the OpenMP runtime that LibTorch has loaded; 0 if it was not found.
int openmp_processors();
/// Starts a team of `threads` OpenMP threads that do nothing. They end with the calling thread. Requires
/// openmp_processors() > 0.
void run_idle_team(int threads);

}  // namespace trainkit::detail
