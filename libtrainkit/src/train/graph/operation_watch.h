#pragma once
// Observes the LibTorch operations of a thread, and those of autograd's threads that work for it.

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <optional>

namespace trainkit::detail {

/// Interface of an observer. It is called from several threads concurrently, possibly after the watch has ended: an
/// autograd thread may still run an operation when backward() has thrown. See Note [Lifetime of observers].
class OperationObserver : public c10::DebugInfoBase {
 public:
  virtual void begin(const at::RecordFunction& operation) = 0;
  virtual void end(const at::RecordFunction& /*operation*/) {}
  /// Called if begin() or end() threw; LibTorch would print and ignore the exception.
  virtual void failed() {}
};

/// Purpose of a watch. Within a thread, watches of different purposes may overlap, watches of the same purpose may not.
enum class WatchPurpose { kCount, kTrace };

/// Calls the observer for the operations of the thread that created the watch, until it is destroyed.
/// See Note [Lifetime of observers].
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
