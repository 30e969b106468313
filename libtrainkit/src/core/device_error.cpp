#include "core/device_error.h"

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
constexpr std::array kLasting = {46,  214, 220, 226, 700, 702, 709, kAssert, 714,
                                 715, 716, 717, 718, 719, 720, 721, 999};

struct Place {
  std::mutex mutex;
  std::string devices;
  int64_t step = 0;
};

Place& place() {
  static auto* const made = new Place;  // never destroyed: static destructors may report errors too
  return *made;
}

}  // namespace

void note_step(std::string_view devices, int64_t step) {
  const std::lock_guard lock(place().mutex);
  place().devices = devices;
  place().step = step;
}

std::optional<absl::Status> device_failure(const c10::AcceleratorError& error) {
  constexpr std::string_view kPrefix = "CUDA error: ";
  if (std::find(kLasting.begin(), kLasting.end(), error.get_error_code()) == kLasting.end()) return std::nullopt;
  std::string problem = error.what_without_backtrace();
  problem = problem.substr(0, problem.find('\n'));
  if (problem.starts_with(kPrefix)) problem = problem.substr(kPrefix.size());
  const bool is_assert = error.get_error_code() == kAssert;
  const std::lock_guard lock(place().mutex);
  if (place().step > 0) problem += ", noticed at step " + std::to_string(place().step);
  return to_status({.exit_code = ExitCode::kDevice,
                    .id = "device.failed",
                    .where = place().devices.empty() ? "CUDA" : place().devices,
                    .problem = problem,
                    .hint = is_assert
                                ? "an index or a class label is out of range; run with --device cpu to find it"
                                : "resume from the last checkpoint; if it happens again, check dmesg for Xid errors"});
}

}  // namespace trainkit::detail
