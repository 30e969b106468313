#pragma once
/// A CPU allocator that runs out of memory on demand: at the n-th allocation or above a limit.

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace trainkit::test {

/// instance() installs it for the rest of the program. Earlier allocations are freed by their own deleter.
class BudgetAllocator : public c10::Allocator {
 public:
  static BudgetAllocator& instance() {
    static auto& installed = *[] {
      auto* allocator = new BudgetAllocator;
      c10::SetCPUAllocator(allocator, /*priority=*/100);
      return allocator;
    }();
    return installed;
  }

  /// Lets `allocations` succeed and the next one fail, once.
  void fail_after(int64_t allocations) {
    fail_in_ = allocations;
    failed_ = false;
  }
  /// Disables the failure. Returns whether it has happened.
  bool disarm() {
    fail_in_ = -1;
    return failed_;
  }
  /// Maximum of allocated bytes; 0 means unlimited.
  void limit(int64_t bytes) { limit_ = bytes; }
  int64_t live() const { return live_; }
  int64_t count() const { return count_; }

  c10::DataPtr allocate(size_t bytes) override {
    ++count_;
    const auto size = static_cast<int64_t>(bytes);
    if (fail_in_ >= 0 && fail_in_-- == 0) {
      failed_ = true;
      C10_THROW_ERROR(OutOfMemoryError, "out of memory, as planted");
    }
    if (limit_ > 0 && live_ + size > limit_) C10_THROW_ERROR(OutOfMemoryError, "out of memory, beyond the limit");
    c10::DataPtr memory = base_->allocate(bytes);
    if (void* const data = memory.get()) {
      const std::lock_guard lock(mutex_);
      sizes_[data] = size;
      live_ += size;
      if (!memory.compare_exchange_deleter(base_->raw_deleter(), &BudgetAllocator::free)) std::abort();
    }
    return memory;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &BudgetAllocator::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { base_->copy_data(to, from, bytes); }

 private:
  static void free(void* data) {
    BudgetAllocator& self = instance();
    {
      const std::lock_guard lock(self.mutex_);
      const auto found = self.sizes_.find(data);
      if (found != self.sizes_.end()) {
        self.live_ -= found->second;
        self.sizes_.erase(found);
      }
    }
    self.base_->raw_deleter()(data);
  }

  c10::Allocator* base_ = c10::GetCPUAllocator();
  std::atomic<int64_t> fail_in_{-1}, limit_{0}, live_{0}, count_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::unordered_map<void*, int64_t> sizes_;
};

}  // namespace trainkit::test
