#include "core/machine/parallel.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/ParallelGuard.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <exception>

namespace trainkit::detail {
namespace {

// Note [OpenMP runtime]
//
// at::parallel_for is a header with an OpenMP pragma. In a file that is compiled without OpenMP it runs on one thread.
// With a compiler that has its own OpenMP runtime (Clang) it starts the threads of a second runtime next to LibTorch's.
// parallel_for therefore calls the runtime that LibTorch has loaded: `#pragma omp parallel` compiles to
// GOMP_parallel of libgomp, or of another library with its interface. Looking the functions up in the process
// (RTLD_DEFAULT) finds the runtime whose number of threads at::set_num_threads changes.
//
// at::parallel_for first initialises its thread with at::internal::lazy_init_num_threads(). Compiled here, this would
// give a thread the number of threads that any thread has set last, even if LibTorch has initialised it long ago.
// LibTorch's own copy, which at::get_num_threads() calls, does so once per thread.
//
// The guards match at::parallel_for: ThreadIdGuard sets at::get_thread_num(), and ParallelGuard marks the parallel
// region, so that nested loops run on one thread. An exception must not leave GOMP_parallel; the first one is kept and
// rethrown.

/// Functions of the loaded OpenMP runtime. See Note [OpenMP runtime].
struct OpenMp {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*thread_number)() = nullptr;
  int (*thread_count)() = nullptr;
  int (*processors)() = nullptr;

  static const OpenMp& get() {
    static const OpenMp functions = [] {
      OpenMp found;
      found.parallel = reinterpret_cast<decltype(found.parallel)>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
      found.thread_number = reinterpret_cast<decltype(found.thread_number)>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
      found.thread_count = reinterpret_cast<decltype(found.thread_count)>(dlsym(RTLD_DEFAULT, "omp_get_num_threads"));
      found.processors = reinterpret_cast<decltype(found.processors)>(dlsym(RTLD_DEFAULT, "omp_get_num_procs"));
      return found;
    }();
    return functions;
  }
  bool is_available() const { return parallel && thread_number && thread_count && processors; }
};

bool can_share_work() {
#ifdef __SANITIZE_THREAD__
  return false;
#endif
  if (at::in_parallel_region() || at::get_num_threads() <= 1) return false;
  if (OpenMp::get().is_available()) return true;
  TORCH_WARN_ONCE("found no OpenMP runtime with GOMP_parallel: trainkit's kernels run on one thread");
  return false;
}

/// State shared by the threads of one parallel_for.
struct ParallelLoop {
  const int64_t begin, end, grain_size;
  const c10::function_ref<void(int64_t, int64_t)> f;
  std::atomic_flag has_failed = ATOMIC_FLAG_INIT;
  std::exception_ptr failure = nullptr;

  void run_part() {
    const OpenMp& openmp = OpenMp::get();
    const int64_t count = end - begin, number = openmp.thread_number();
    int64_t parts = openmp.thread_count();
    if (grain_size > 0) parts = std::min(parts, at::divup(count, grain_size));
    const int64_t size = at::divup(count, parts), from = begin + number * size;
    if (from >= end) return;
    try {
      const at::internal::ThreadIdGuard thread(static_cast<int>(number));
      const c10::ParallelGuard guard(true);
      f(from, std::min(end, from + size));
    } catch (...) {
      if (!has_failed.test_and_set()) failure = std::current_exception();
    }
  }
};

}  // namespace

void parallel_for(int64_t begin, int64_t end, int64_t grain_size, c10::function_ref<void(int64_t, int64_t)> f) {
  if (begin >= end) return;
  const int64_t count = end - begin;
  if (count == 1 || count <= grain_size || !can_share_work()) {
    const at::internal::ThreadIdGuard thread(0);
    const c10::ParallelGuard guard(true);
    f(begin, end);
    return;
  }
  ParallelLoop loop{begin, end, grain_size, f};
  OpenMp::get().parallel([](void* data) { static_cast<ParallelLoop*>(data)->run_part(); }, &loop, 0, 0);
  if (loop.failure) std::rethrow_exception(loop.failure);
}

int openmp_processors() { return OpenMp::get().is_available() ? OpenMp::get().processors() : 0; }

void run_idle_team(int threads) {
  OpenMp::get().parallel([](void*) {}, nullptr, static_cast<unsigned>(threads), 0);
}

}  // namespace trainkit::detail
