// Counts the allocations, locks and clock reads of a steady step, by Trainer and by a hand-written loop. Replaces the
// counted functions of the C library, so it is a program of its own.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include <cstdlib>

#include "rounds.h"
#include "train/mlp_task.h"

namespace {

/// Calls of this thread so far.
struct Calls {
  int64_t allocations, locks, clock_reads;
};
thread_local constinit Calls calls = {};

/// Returns the replaced function.
template <class F>
F* original(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// operator new calls malloc, and LibTorch's allocator posix_memalign.
extern "C" {

void* malloc(size_t bytes) {
  static const auto next = original<decltype(malloc)>("malloc");
  ++calls.allocations;
  return next(bytes);
}

int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  static const auto next = original<decltype(posix_memalign)>("posix_memalign");
  ++calls.allocations;
  return next(memory, alignment, bytes);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static const auto next = original<decltype(pthread_mutex_lock)>("pthread_mutex_lock");
  ++calls.locks;
  return next(mutex);
}

int clock_gettime(clockid_t clock, timespec* time) {
  static const auto next = original<decltype(clock_gettime)>("clock_gettime");
  ++calls.clock_reads;
  return next(clock, time);
}
}

namespace trainkit {
namespace {

constexpr int64_t kSteps = 64 * 10;  // whole epochs, in which each tenth step makes a record

Calls operator-(const Calls& a, const Calls& b) {
  return {a.allocations - b.allocations, a.locks - b.locks, a.clock_reads - b.clock_reads};
}

/// Returns the calls of kSteps steady steps: the difference between a long and a short run.
Calls steady(const std::function<void(int64_t steps)>& run) {
  const auto calls_of = [&](int64_t steps) {
    const Calls before = calls;
    run(steps);
    return calls - before;
  };
  calls_of(kSteps);  // warm-up
  const Calls shorter = calls_of(kSteps);
  return calls_of(2 * kSteps) - shorter;
}

/// Counters: calls per step of the loop of `state.range(0)`: 0 by hand, 1 TrainStep, 2 Trainer without records, 3
/// Trainer with a record every 10 steps.
void BM_StepCounts(benchmark::State& state) {
  bench::MlpTask task;
  Adam adam({.lr = 1e-3});
  TrainStep step(*task.devices, adam);
  const LossFunction loss(bench::loss_of);
  RunLogger logger({.queue_capacity = 16});  // soon all its slots have memory
  const auto train = [&](int64_t steps) {
    TrainerOptions options{.max_epochs = 0, .max_steps = steps, .log_every = state.range(0) == 3 ? 10 : 0};
    Trainer::create(*task.devices, Adam({.lr = 1e-3}), options)
        .value()
        .fit(*task.loader, bench::loss_of, {.logger = &logger})
        .value();
  };
  const auto step_by_step = [&](int64_t steps) {
    while (steps > 0) {
      const auto batch = task.loader->next().value();
      if (!batch) continue;
      step(*batch, loss);
      --steps;
    }
  };
  Calls counted = {};
  for (auto _ : state) {
    counted = steady([&](int64_t steps) {
      if (state.range(0) == 0) return bench::by_hand(task, adam, steps);
      state.range(0) == 1 ? step_by_step(steps) : train(steps);
    });
  }
  const auto per_step = [](int64_t count) { return static_cast<double>(count) / static_cast<double>(kSteps); };
  state.counters["allocations"] = per_step(counted.allocations);
  state.counters["locks"] = per_step(counted.locks);
  state.counters["clock_reads"] = per_step(counted.clock_reads);
}
BENCHMARK(BM_StepCounts)->ArgName("loop")->DenseRange(0, 3)->Iterations(1);

}  // namespace
}  // namespace trainkit
