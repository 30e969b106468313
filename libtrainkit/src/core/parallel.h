#pragma once
/// A parallel loop on LibTorch's threads that works with any compiler.

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace trainkit::detail {

/// Calls f(begin, end) for parts of [begin, end) of at least `grain_size` elements on LibTorch's intra-op threads, and
/// waits for them, like at::parallel_for. Rethrows the first exception of f. Under ThreadSanitizer, which does not see
/// the synchronisation of the OpenMP runtime, the calling thread does all the work. See Note [OpenMP runtime].
void parallel_for(int64_t begin, int64_t end, int64_t grain_size, c10::function_ref<void(int64_t, int64_t)> f);

/// Lets LibTorch's intra-op threads sleep after microseconds without work instead of milliseconds, for the rest of the
/// process: on a machine with other load, waiting threads would otherwise take the processors from those that compute.
/// Call it after the number of threads is chosen. Returns at once; later calls do nothing. Does nothing if the
/// environment has OMP_WAIT_POLICY or GOMP_SPINCOUNT, under ThreadSanitizer, and with fewer than two threads. See Note
/// [Waiting threads].
void let_waiting_threads_sleep();

}  // namespace trainkit::detail
