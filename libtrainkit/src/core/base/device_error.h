#pragma once
/// Errors after which a GPU computes nothing more in this process: an illegal access, a failed launch, a hardware
/// fault.

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace c10 {
class AcceleratorError;
}

namespace trainkit::detail {

/// Records the devices ("cuda:0") and the step being computed, for the text of a later error. Devices report such
/// errors asynchronously, at any later call, so the step is the one in which the error was noticed. Thread-safe.
void note_step(std::string_view devices, int64_t step);

/// Returns the Error of a failed device (ExitCode::kDevice); nullopt for an error after which the device still works.
std::optional<absl::Status> device_failure(const c10::AcceleratorError& error);

}  // namespace trainkit::detail
