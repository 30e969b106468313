#pragma once
/// Saves and restores LibTorch's default random generators, which dropout and initialisation use.

#include <absl/status/status.h>

#include "trainkit/core/state_dict.h"

namespace trainkit {

/// Copies the state of the default generators: "cpu", and "cuda.0", "cuda.1", ... of the CUDA devices in use, each a
/// uint8 tensor. Takes each generator's lock; synchronises with no device.
StateDict default_generator_state();

/// Restores the generators, on any kind and number of devices. Ignores entries of devices that are not in use; a device
/// without an entry keeps its generator. "cpu" is required. Checks all entries first: an error (exit code 5) names the
/// one that is missing or has another size, and no generator has changed.
absl::Status load_default_generator_state(const StateDict& state);

}  // namespace trainkit
