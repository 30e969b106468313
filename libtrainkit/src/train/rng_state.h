#pragma once
/// The state of LibTorch's own random number generators, which dropout and initialisation draw from.

#include <absl/status/status.h>

#include "trainkit/core/state_dict.h"

namespace trainkit {

/// The default generators: "cpu", and "cuda.0", "cuda.1", ... where CUDA is in use. Each is a uint8 tensor, a copy.
/// Takes each generator's lock; synchronises with no device.
StateDict default_generator_state();

/// Puts the generators back, on any kind and number of devices: an entry of a device that is not in use here is left
/// out, and a device that has no entry keeps the generator that it has. "cpu" must be there. All entries are checked
/// first; an error (exit code 5) names the one that is missing or of another size, and then no generator has changed.
absl::Status load_default_generator_state(const StateDict& state);

}  // namespace trainkit
