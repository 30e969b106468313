#include "core/machine/allocation_guard.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include "core/machine/host_memory.h"
#include "test_util.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

absl::Status allocate(int64_t bytes) try {
  const at::Tensor memory = at::empty({bytes}, at::kByte);  // not touched
  return absl::OkStatus();
} catch (...) {
  return status_from_current_exception();
}

TEST_CASE("A guard refuses memory that the machine does not have, as out of memory", "[core][allocation_guard]") {
  const HostMemory host = host_memory();
  const int64_t too_much = host.available_bytes + host.free_swap_bytes + (host.total_bytes - host.available_bytes) / 2;
  const detail::AllocationGuard outer;
  {
    const detail::AllocationGuard inner;
    CHECK(allocate(too_much).code() == absl::StatusCode::kResourceExhausted);
  }
  const absl::Status refused = allocate(too_much);
  CHECK(exit_code(refused) == ExitCode::kOutOfMemory);
  CHECK_THAT(error_text(refused), Catch::Contains("not enough memory on this machine: "));
  CHECK(detail::is_refused_memory(refused));
  CHECK(allocate(int64_t{48} << 20).ok());
}

TEST_CASE("The last guard restores LibTorch's allocator", "[core][allocation_guard]") {
  c10::Allocator* const before = c10::GetCPUAllocator();
  at::Tensor kept;
  {
    const detail::AllocationGuard guard;
    CHECK(c10::GetCPUAllocator() != before);
    kept = at::empty({1000});
  }
  CHECK(c10::GetCPUAllocator() == before);
  kept.zero_();
}

}  // namespace
}  // namespace trainkit
