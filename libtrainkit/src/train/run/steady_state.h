#pragma once
// Notes when the steps of a run have reached their steady state. Internal to Trainer.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/planning/real_memory.h"
#include "train/run/fit_context.h"

namespace trainkit {

/// From the second step on until all further steps take the same memory, measures it to compare it with the predicted
/// one. Says once that steps are captured as CUDA graphs, and once that they no longer are. Keeps a reference to `run`.
class SteadyState {
 public:
  explicit SteadyState(const FitContext& run) : run_(run), uses_graphs_(run.step.uses_graphs()) {}

  /// The predicted memory of a step; 0 without a plan.
  DeviceMemory predicted() const;
  /// Precedes each micro-batch.
  void begin_batch();
  /// Follows each step. Returns whether the memory has been measured now: then real() and memory_line() are set.
  bool end_step();
  /// The measured memory of a step; 0 before.
  const DeviceMemory& real() const { return real_; }
  /// Compares both; empty if nothing could be measured.
  std::string memory_line() const;
  /// Returns the lines about graphs that this step is the reason for.
  std::vector<std::string> graph_lines();

 private:
  /// Steps after which a run without a captured CUDA graph is reported.
  static constexpr int64_t kLateCapture = 20;
  bool is_reached() const;

  const FitContext& run_;
  std::optional<detail::RealMemory> measured_;  // from the second step until the steady state
  DeviceMemory real_;
  bool uses_graphs_;
  int64_t captures_ = 0;
};

}  // namespace trainkit
