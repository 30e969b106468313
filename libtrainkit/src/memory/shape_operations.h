#pragma once
/// Runs a step without its arithmetic, for memory plans: a step of GPT-2 on the CPU takes minutes, its allocations
/// milliseconds.

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/machine/shapes_only.h"
#include "memory/memory_recorder.h"

namespace trainkit::detail {

/// While one exists, operations of this thread on the CPU allocate their results and compute nothing. See Note [Shapes
/// without values]. One at a time in a thread.
class ShapesOnly {
 public:
  /// `recorder` records this thread's memory, with RecordedMemory::kUntouched, and must outlive this object.
  explicit ShapesOnly(MemoryRecorder& recorder);
  ~ShapesOnly();
  ShapesOnly(const ShapesOnly&) = delete;
  ShapesOnly& operator=(const ShapesOnly&) = delete;

  /// Returns whether an operation was refused, and so has thrown c10::NotImplementedError: one that reads a value that
  /// was not computed (item(), nonzero()), or a 16-bit convolution on the CPU.
  static bool was_refused();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace trainkit::detail
