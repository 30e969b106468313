#pragma once
/// Measures several implementations of the same work alternately, so that other load on the machine does not affect the
/// ratios of a round.

#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trainkit::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Work per second of calling `piece` for about `duration` seconds; `piece` returns the amount of its work.
template <class Piece>
double rate(double duration, Piece piece) {
  const auto start = Clock::now();
  double work = 0, elapsed = 0;
  do {
    work += piece();
    elapsed = seconds_since(start);
  } while (elapsed < duration);
  return work / elapsed;
}

/// Work per second of `threads` threads that call `piece(thread)` repeatedly for about `duration` seconds.
template <class Piece>
double threaded_rate(int threads, double duration, Piece piece) {
  std::vector<double> work(threads * 16);  // one cache line per thread
  const auto start = Clock::now();
  std::vector<std::thread> crew;
  for (int thread = 0; thread < threads; ++thread) {
    crew.emplace_back([&, thread] {
      while (seconds_since(start) < duration) work[thread * 16] += piece(thread);
    });
  }
  for (auto& thread : crew) thread.join();
  const double elapsed = seconds_since(start);
  double all = 0;
  for (int thread = 0; thread < threads; ++thread) all += work[thread * 16];
  return all / elapsed;
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// One implementation: its rate, measured for about `duration` seconds.
struct Contestant {
  std::string name;
  std::function<double(double duration)> rate;
};

/// CPU time of this process in seconds.
inline double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Whether this is a smoke test (TRAINKIT_BENCH_QUICK): ignore its timings.
inline bool quick() {
  const char* value = std::getenv("TRAINKIT_BENCH_QUICK");
  return value && *value;
}

/// Measures the contestants alternately, each for `duration` seconds, once per iteration. Counters: the median rate of
/// each under its name; for each after the first the median over the rounds of first / it, "over_<name>"; and the same
/// per second of CPU time, "cpu_over_<name>", which depends much less on other load.
inline void run_rounds(benchmark::State& state, const std::vector<Contestant>& contestants, double duration = 0.1) {
  const size_t count = contestants.size();
  if (quick()) duration /= 20;
  std::vector<std::vector<double>> rates(count), ratios(count), cpu_ratios(count);
  std::vector<double> per_cpu_second(count);
  for (const auto& contestant : contestants) contestant.rate(duration / 10);  // warm-up
  for (auto _ : state) {
    for (size_t i = 0; i < count; ++i) {
      const auto start = Clock::now();
      const double used = processor_seconds();
      rates[i].push_back(contestants[i].rate(duration));
      per_cpu_second[i] = rates[i].back() * seconds_since(start) / (processor_seconds() - used);
      ratios[i].push_back(rates[0].back() / rates[i].back());
      cpu_ratios[i].push_back(per_cpu_second[0] / per_cpu_second[i]);
    }
    state.SetIterationTime(1 / rates[0].back());
  }
  for (size_t i = 0; i < count; ++i) {
    state.counters[contestants[i].name] = median(rates[i]);
    if (i == 0) continue;
    state.counters["over_" + contestants[i].name] = median(ratios[i]);
    state.counters["cpu_over_" + contestants[i].name] = median(cpu_ratios[i]);
  }
}

}  // namespace trainkit::bench
