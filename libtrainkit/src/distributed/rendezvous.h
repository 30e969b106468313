#pragma once
// How the ranks of a job find one another. Internal to ProcessGroup.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trainkit/distributed/launch_environment.h"

namespace trainkit::detail {

using Deadline = std::chrono::steady_clock::time_point;

/// An Error of exit code 8.
absl::Status distributed_error(std::string id, std::string field, std::string problem, std::string got = {},
                               std::string expected = {}, std::string hint = {});

/// The address that `bind` (an address, a host name or a network interface of this machine) stands for.
absl::StatusOr<std::string> local_address(const std::string& bind);

/// Connects to the job's store; on rank 0 listens on `bind` for it, unless the launcher has one. Keys are this job's
/// and this attempt's own.
absl::StatusOr<c10::intrusive_ptr<c10d::Store>> open_store(const LaunchEnvironment& launch, const std::string& bind,
                                                           Deadline deadline, std::chrono::milliseconds timeout);

/// Returns when all ranks have come; names those that have not when the deadline has passed.
absl::Status join(c10d::Store& store, const LaunchEnvironment& launch, Deadline deadline,
                  std::chrono::milliseconds timeout);

}  // namespace trainkit::detail
