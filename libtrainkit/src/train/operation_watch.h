#pragma once
// Sees the operations that a thread asks of LibTorch, and those of autograd's threads that work for it.

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <optional>

namespace trainkit::detail {

/// Called from several threads at once. A call may come after the watch has ended: an autograd thread may still be in
/// an operation when backward() has thrown.
class OperationObserver : public c10::DebugInfoBase {
 public:
  virtual void begin(const at::RecordFunction& operation) = 0;
  virtual void end(const at::RecordFunction& /*operation*/) {}
  /// An exception of begin() or end(), which LibTorch would print and forget.
  virtual void failed() {}
};

/// Watches of one purpose do not overlap in a thread; of two purposes they may.
enum class WatchPurpose { kCount, kTrace };

/// Calls the observer until it is destroyed, in the thread that made it. Threads that work for this one hold the
/// observer for as long as they call it: it is handed on with LibTorch's thread-local state, as the callbacks are.
class OperationWatch {
 public:
  OperationWatch(WatchPurpose purpose, std::shared_ptr<OperationObserver> observer);
  ~OperationWatch() { at::removeCallback(handle_); }
  OperationWatch(const OperationWatch&) = delete;
  OperationWatch& operator=(const OperationWatch&) = delete;

 private:
  c10::DebugInfoGuard observer_;
  at::CallbackHandle handle_;
};

}  // namespace trainkit::detail
