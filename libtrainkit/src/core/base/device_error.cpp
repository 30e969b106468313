#include "core/base/device_error.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>

#include "trainkit/core/error.h"

namespace trainkit::detail {
namespace {

// Values of cudaError_t. This module is compiled without CUDA's headers.
constexpr int kAssert = 710;
constexpr std::array kFatalErrors = {46,  214, 220, 226, 700, 702, 709, kAssert, 714,
                                     715, 716, 717, 718, 719, 720, 721, 999};

struct CurrentStep {
  std::mutex mutex;
  std::string devices;
  int64_t step = 0;
};

CurrentStep& current_step() {
  static auto* const created = new CurrentStep;  // never destroyed: static destructors may report errors too
  return *created;
}

}  // namespace

void note_step(std::string_view devices, int64_t step) {
  const std::lock_guard lock(current_step().mutex);
  current_step().devices = devices;
  current_step().step = step;
}

std::optional<absl::Status> device_failure(const c10::AcceleratorError& error) {
  constexpr std::string_view kPrefix = "CUDA error: ";
  if (std::find(kFatalErrors.begin(), kFatalErrors.end(), error.get_error_code()) == kFatalErrors.end())
    return std::nullopt;
  std::string problem = error.what_without_backtrace();
  problem = problem.substr(0, problem.find('\n'));
  if (problem.starts_with(kPrefix)) problem = problem.substr(kPrefix.size());
  const bool is_assert = error.get_error_code() == kAssert;
  const std::lock_guard lock(current_step().mutex);
  if (current_step().step > 0) problem += ", noticed at step " + std::to_string(current_step().step);
  return to_status({.exit_code = ExitCode::kDevice,
                    .id = "device.failed",
                    .where = current_step().devices.empty() ? "CUDA" : current_step().devices,
                    .problem = problem,
                    .hint = is_assert
                                ? "an index or a class label is out of range; run with --device cpu to find it"
                                : "resume from the last checkpoint; if it happens again, check dmesg for Xid errors"});
}

}  // namespace trainkit::detail
