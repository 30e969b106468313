#include "train/retry/memory_recovery.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <exception>
#include <utility>

#include "train/graph/step_graphs.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {

MemoryRecovery::MemoryRecovery(at::Device device, std::function<bool()> release)
    : device_(device), release_(std::move(release)) {}

void MemoryRecovery::run(c10::function_ref<void()> stage) {
  for (int attempt = 0;; ++attempt) {
    try {
      return stage();
    } catch (const std::exception&) {
      if (is_capturing_ || attempt == 2 || !absl::IsResourceExhausted(status_from_current_exception())) throw;
    }
    const bool dropped = attempt == 1 && drop_graphs();
    empty_cache();
    if (attempt == 1 && !dropped && release_) release_();
  }
}

bool MemoryRecovery::prepare_retry(bool can_split) {
  has_freed_ = drop_graphs();
  if (has_freed_ || can_split) return true;
  has_freed_ = release_ && release_();
  return has_freed_;
}

bool MemoryRecovery::drop_graphs(const std::string& reason) {
  if (!graphs_ || !graphs_->holds_any()) return false;
  graphs_->give_up(reason);
  return true;
}

void MemoryRecovery::empty_cache() const {
  if (!device_.is_cpu()) at::getDeviceAllocator(device_.type())->emptyCache();
}

}  // namespace trainkit::detail
