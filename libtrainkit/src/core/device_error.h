#pragma once
// Errors of a GPU after which it computes nothing more in this process: an illegal access, a failed launch, a hardware
// fault.

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace c10 {
class AcceleratorError;
}

namespace trainkit::detail {

/// Remembers the devices ("cuda:0") and the step that the process computes, for the text of such an error. The device
/// reports it late, at any later call: the step is the one in which it was noticed. Thread-safe.
void note_step(std::string_view devices, int64_t step);

/// The Error of a device that failed (ExitCode::kDevice); nullopt for an error after which the device still works.
std::optional<absl::Status> device_failure(const c10::AcceleratorError& error);

}  // namespace trainkit::detail
