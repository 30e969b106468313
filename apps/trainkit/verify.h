#pragma once
/// Declares the checks of `trainkit doctor --verify`: do this machine's devices compute correct results?

#include <absl/status/status.h>
#include <c10/core/Device.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainkit/findings.h"

namespace c10d {
class Backend;
}

namespace trainkit::tool {

/// Result of one check.
struct Checked {
  enum class State { kOk, kFailed, kSkipped } state = State::kOk;
  /// Figures, without "ok" or "failed".
  std::string text;
  nlohmann::ordered_json value = {};
  /// Remedy after a failure; empty otherwise.
  std::string hint = {};
};

inline Checked passed_if(bool passed, std::string text, nlohmann::ordered_json value, std::string hint) {
  return {passed ? Checked::State::kOk : Checked::State::kFailed, std::move(text), std::move(value),
          passed ? std::string() : std::move(hint)};
}

/// Returns the names that --verify_only accepts.
const std::vector<std::string>& check_names();

struct VerifyOptions {
  /// Names of the checks to run. Empty means all.
  std::vector<std::string> only = {};
  /// Seconds after which no further check starts. 0 means unlimited.
  double max_seconds = 120;
  /// Called after each check. Saves the results so far in case a later check ends the process.
  std::function<void()> on_result = nullptr;
};

/// Runs the checks on every visible GPU, or on the CPU if there is no GPU. Adds a line per check to `findings` and
/// writes progress to stderr. A check that throws counts as failed. Returns the number of failed checks.
int verify_devices(Findings& findings, const VerifyOptions& options);

// Checks of one device. The kernel checks compare with LibTorch's operations in float64 on the CPU. With a CPU device
// they run the GPU code path on the CPU (core/device/gpu_operations.h).
Checked verify_layer_norm(at::Device device);
Checked verify_gelu(at::Device device);
Checked verify_cross_entropy(at::Device device);
Checked verify_patches(at::Device device);
/// Captured training steps and eager steps give identical bits, with dropout, a schedule and a skipped step. CUDA only.
Checked verify_graph_fp32(at::Device device);
Checked verify_graph_fp16(at::Device device);
/// Batches of a Prefetcher arrive intact while host and device are busy, copied ahead and copied in slices.
Checked verify_copies(at::Device device);
/// The predicted peak memory of a step is within 50 % of the measured peak, in fp32 and bf16. Skipped without a
/// prediction.
Checked verify_memory(at::Device device);
/// A checkpoint is bitwise identical to the run that saved it, and so is a run that resumes from it.
Checked verify_checkpoint(at::Device device);

// Checks of several devices. Without a GPU they use CPU replicas.
/// DataParallel gives the losses of one device.
Checked verify_data_parallel(at::DeviceType type, int devices);
/// All-reduce (NCCL, or Gloo on the CPU) gives exact sums of integers.
Checked verify_all_reduce(at::DeviceType type, int devices);

/// Runs `body` in one thread per rank and blocks until all have ended. Each gets a backend: NCCL for CUDA (rank i uses
/// device i), Gloo over the loopback interface for the CPU. Returns the error of the lowest rank that failed.
absl::Status run_ranks(at::DeviceType type, int ranks,
                       const std::function<void(c10d::Backend& backend, at::Device device, int rank)>& body);

}  // namespace trainkit::tool
