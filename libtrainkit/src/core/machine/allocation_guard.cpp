#include "core/machine/allocation_guard.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "core/machine/host_memory.h"
#include "trainkit/core/fs.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kCheckedBytes = int64_t{32} << 20;
constexpr char kProblem[] = "not enough memory on this machine: ";
constexpr uint8_t kPriority = 100;  // that of MemoryRecorder, which may exist at the same time

int64_t free_bytes() {
  const HostMemory memory = trainkit::host_memory();
  return memory.available_bytes + memory.free_swap_bytes;
}

/// Passes every allocation on to the allocator that it has replaced, whose deleter stays with the memory. The object is
/// never destroyed: another thread may still be inside allocate() when the last guard ends.
class CheckingAllocator final : public c10::Allocator {
 public:
  static CheckingAllocator& instance() {
    static auto* allocator = new CheckingAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    check(static_cast<int64_t>(bytes));
    return base_.load()->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_.load()->raw_deleter(); }
  bool is_simple_data_ptr(const c10::DataPtr& memory) const override {
    return base_.load()->is_simple_data_ptr(memory);
  }
  void copy_data(void* dest, const void* src, size_t count) const override {
    base_.load()->copy_data(dest, src, count);
  }

  void add_guard() {
    const std::lock_guard lock(mutex_);
    if (guards_++ > 0) return;
    base_ = c10::GetCPUAllocator();
    free_before_ = free_bytes();
    asked_ = 0;
    unchecked_ = 0;
    c10::SetCPUAllocator(this, kPriority);
  }

  void remove_guard() {
    const std::lock_guard lock(mutex_);
    if (--guards_ == 0) c10::SetCPUAllocator(base_, kPriority);
  }

 private:
  /// malloc may keep freed memory, which is then neither free nor in use. So memory is refused only if it is more than
  /// what is free now, and all that was asked for is more than what was free before.
  void check(int64_t bytes) {
    const int64_t asked = asked_ += bytes;
    const int64_t unchecked = unchecked_ += bytes;
    if (unchecked < kCheckedBytes) return;
    unchecked_ = 0;
    if (asked <= free_before_ || free_before_ <= 0) return;
    const int64_t left = free_bytes();
    if (unchecked <= left) return;
    TORCH_CHECK_WITH(OutOfMemoryError, false, kProblem, describe_bytes(bytes), " asked for, ", describe_bytes(left),
                     " left");
  }

  std::mutex mutex_;
  int guards_ = 0;
  std::atomic<c10::Allocator*> base_ = nullptr;
  std::atomic<int64_t> free_before_ = 0, asked_ = 0, unchecked_ = 0;
};

}  // namespace

AllocationGuard::AllocationGuard() { CheckingAllocator::instance().add_guard(); }
AllocationGuard::~AllocationGuard() { CheckingAllocator::instance().remove_guard(); }

bool is_refused_memory(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && status.message().find(kProblem) != std::string_view::npos;
}

}  // namespace trainkit::detail
