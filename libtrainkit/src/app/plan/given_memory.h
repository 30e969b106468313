#pragma once
// The memory of a device that a flag gives. Internal to memory plans.

#include <absl/status/statusor.h>

#include <cstdint>

#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"

namespace trainkit::detail {

/// Returns the bytes of --gpu_memory; 0 if it is not given. Error: cli.value for a value that is no memory of a GPU.
absl::StatusOr<int64_t> given_memory(const ConfigParser& parser, const RunOptions& run);

}  // namespace trainkit::detail
