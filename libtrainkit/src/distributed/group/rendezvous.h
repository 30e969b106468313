#pragma once
// Connects the ranks of a job to a common store. Internal to ProcessGroup.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trainkit/distributed/process_group.h"

namespace trainkit::detail {

using Deadline = std::chrono::steady_clock::time_point;

/// Makes an Error of exit code 8.
absl::Status distributed_error(std::string id, std::string field, std::string problem, std::string got = {},
                               std::string expected = {}, std::string hint = {});

/// Resolves `bind` (an address, a host name or a network interface of this machine) to an address.
absl::StatusOr<std::string> local_address(const std::string& bind);

/// Connects to the job's store. Rank 0 listens on `bind` and hosts it, unless the launcher does. Keys have a prefix
/// that is unique to the job and the attempt.
absl::StatusOr<c10::intrusive_ptr<c10d::Store>> open_store(const LaunchEnvironment& launch, const std::string& bind,
                                                           Deadline deadline, std::chrono::milliseconds timeout);

/// Blocks until all ranks have joined. After the deadline, returns an error that names the missing ranks.
absl::Status join(c10d::Store& store, const LaunchEnvironment& launch, Deadline deadline,
                  std::chrono::milliseconds timeout);

}  // namespace trainkit::detail
