#pragma once
/// The checks of `trainkit doctor --verify`: whether this machine's devices compute what they should.

#include <absl/status/status.h>
#include <c10/core/Device.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainkit/report.h"

namespace c10d {
class Backend;
}

namespace trainkit::tool {

/// Result of one check.
struct Checked {
  enum class State { kOk, kFailed, kSkipped } state = State::kOk;
  /// The figures, without "ok" or "failed".
  std::string text;
  nlohmann::ordered_json value = {};
  /// What to do after a failure.
  std::string hint = {};
};

inline Checked passed_if(bool passed, std::string text, nlohmann::ordered_json value, std::string hint) {
  return {passed ? Checked::State::kOk : Checked::State::kFailed, std::move(text), std::move(value),
          passed ? std::string() : std::move(hint)};
}

/// The names that --verify_only accepts.
const std::vector<std::string>& check_names();

struct VerifyOptions {
  /// Names of the checks to run; empty: all.
  std::vector<std::string> only = {};
  /// Time after which no further check starts; 0: unlimited.
  double max_seconds = 120;
  /// Called after each check, so that its result is kept if a later check ends the process.
  std::function<void()> on_result = nullptr;
};

/// Runs all checks on every visible GPU, or on the CPU if there is none, and adds a line for each to `report`. Writes
/// progress to stderr. A check that throws has failed. Returns the number of failed checks.
int verify_devices(Report& report, const VerifyOptions& options);

// The checks of one device. Those of kernels compare with LibTorch's operations in float64 on the CPU; on the CPU the
// operations that a GPU would run are computed there (core/gpu_operations.h).
Checked verify_layer_norm(at::Device device);
Checked verify_gelu(at::Device device);
Checked verify_cross_entropy(at::Device device);
Checked verify_patches(at::Device device);
/// Captured training steps have the bits of eager ones, with dropout, a schedule and a skipped step. CUDA alone.
Checked verify_graph_fp32(at::Device device);
Checked verify_graph_fp16(at::Device device);
/// Batches of a Prefetcher arrive whole while the host and the device are busy, copied ahead and in slices.
Checked verify_copies(at::Device device);
/// The predicted peak of a step is the device's within 50 %, in fp32 and bf16. Skipped where there is no
/// prediction.
Checked verify_memory(at::Device device);
/// A checkpoint has the bits of the run that saved it, and so has a run that resumes from it.
Checked verify_checkpoint(at::Device device);

// The checks of several devices; CPU replicas stand in for them where there is no GPU.
/// DataParallel has the losses of one device.
Checked verify_data_parallel(at::DeviceType type, int devices);
/// All-reduce (NCCL, or Gloo on the CPU) has exact sums of integers.
Checked verify_all_reduce(at::DeviceType type, int devices);

/// Runs `body` in a thread per rank, each with a backend that connects it to the others: NCCL for CUDA (rank i is
/// device i), Gloo on the loopback interface for the CPU. Returns the first error.
absl::Status run_ranks(at::DeviceType type, int ranks,
                       const std::function<void(c10d::Backend& backend, at::Device device, int rank)>& body);

}  // namespace trainkit::tool
