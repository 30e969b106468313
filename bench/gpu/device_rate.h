#pragma once
/// Timing on a GPU, and registration of the cases of this suite.

#include <benchmark/benchmark.h>
#include <torch/cuda.h>

#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "rounds.h"

namespace trainkit::bench {

inline const at::Device kGpu(at::kCUDA, 0);

/// Work per second of calling `piece` for about `duration` seconds; `piece` queues work on the device and returns its
/// amount. Calls it in groups, and waits for the device at the end of each before it reads the clock.
template <class Piece>
double device_rate(double duration, Piece piece) {
  torch::cuda::synchronize();
  const auto start = Clock::now();
  double work = 0, elapsed = 0;
  for (int64_t group = 1; elapsed < duration;) {
    for (int64_t i = 0; i < group; ++i) work += static_cast<double>(piece());
    torch::cuda::synchronize();
    const double before = std::exchange(elapsed, seconds_since(start));
    if (elapsed - before < duration / 10) group *= 2;
  }
  return work / elapsed;
}

/// Adds the case `name`, which runs once and sets its own time. An exception is reported as the error of this case; the
/// other cases still run.
inline void add_case(const std::string& name, std::function<void(benchmark::State&)> body, int iterations = 1) {
  const auto guarded = [body = std::move(body)](benchmark::State& state) {
    try {
      body(state);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      state.SkipWithError(text.substr(0, text.find('\n')).c_str());
    }
  };
  benchmark::RegisterBenchmark(name.c_str(), guarded)
      ->UseManualTime()
      ->Iterations(iterations)
      ->Unit(benchmark::kMillisecond);
}

// Each adds the cases of one file.
void add_training_cases();
void add_operation_cases();
void add_loader_cases();

}  // namespace trainkit::bench
