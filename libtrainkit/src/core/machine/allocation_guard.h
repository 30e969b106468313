#pragma once
/// Refuses memory that this machine does not have.

#include <absl/status/status.h>

namespace trainkit::detail {

/// While one exists, LibTorch's CPU allocator throws c10::OutOfMemoryError (exit code 7) for memory that neither the
/// machine nor the process's control group has left. Otherwise Linux grants it and kills the process when it is used.
///
/// For code that makes models or records steps: every 32 MiB of allocations it reads the free memory, which takes ten
/// microseconds. May be nested. Memory may outlive the guard.
class AllocationGuard {
 public:
  AllocationGuard();
  ~AllocationGuard();
  AllocationGuard(const AllocationGuard&) = delete;
  AllocationGuard& operator=(const AllocationGuard&) = delete;
};

/// Whether `status` is that of an exception of AllocationGuard.
bool is_refused_memory(const absl::Status& status);

}  // namespace trainkit::detail
