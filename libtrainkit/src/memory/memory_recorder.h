#pragma once
/// Records LibTorch's allocations on the CPU.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "trainkit/memory/memory_trace.h"

namespace trainkit {

/// The memory of recorded allocations.
enum class RecordedMemory {
  kReal,      ///< That of the allocator before.
  kUntouched  ///< Zeros. Large blocks use physical memory only for the pages that are accessed.
};

/// Records every CPU allocation of a scope with its class.
///
///   MemoryRecorder recorder(MemoryClass::kWeights);
///   Net model(64, 10);
///   recorder.enter(MemoryClass::kActivations);
///   loss(model, batch).backward();
///   for (const auto& p : model->parameters()) recorder.assign(p.grad(), MemoryClass::kGradients);
///   MemoryBytes peak = recorder.peak();
///
/// Wraps LibTorch's CPU allocator and restores it on destruction. Memory may outlive the scope; it is then no longer
/// counted. Memory from before the scope may be freed in it; it is never counted. Sizes are those requested, without
/// malloc's overhead. In the trace, kernel libraries' own memory becomes kWorkspace when they free it. Temporary memory
/// of at::parallel_for bodies also becomes kWorkspace: one block, whatever the number of pieces.
///
/// One recorder at a time in a process (throws c10::Error otherwise). Records the allocations of all threads. An
/// allocation that is concurrent with the constructor or destructor may or may not be counted.
class MemoryRecorder {
 public:
  /// If `keep_trace` is false, keeps only the sums and not the events, for work of any length.
  explicit MemoryRecorder(MemoryClass kind = MemoryClass::kActivations, bool keep_trace = true,
                          RecordedMemory memory = RecordedMemory::kReal);
  ~MemoryRecorder();
  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;

  /// Begins a new phase. Its allocations have class `kind`.
  void enter(MemoryClass kind);
  /// Sets the stream of the following allocations (MemoryTrace::Block).
  void set_stream(int32_t stream);
  /// Adds a block that is not allocated here but would be on another device. It is never freed.
  void add(int64_t bytes, MemoryClass kind);
  /// Adds blocks that are not allocated here and live at the same time, and frees all of them at once.
  void pass(std::span<const int64_t> bytes, MemoryClass kind);
  /// Changes the class of freed blocks to `kind`, except for the first `allocation` blocks of the trace
  /// (allocations()).
  void assign_freed_since(int64_t allocation, MemoryClass kind);
  /// Records the event MemoryTrace::kEmptyCache.
  void empty_cache();
  /// Changes the class of `tensor`'s memory to `kind`. Does nothing if it is undefined or was allocated elsewhere.
  void assign(const at::Tensor& tensor, MemoryClass kind);

  /// Notes whether the values of `tensor`'s memory were computed, for ShapesOnly. Does nothing if it was allocated
  /// elsewhere. Unknown values stay so if only a part of them becomes known.
  void set_known(const at::Tensor& tensor, bool known);
  /// Returns what was noted. Unless noted, floating-point numbers that were allocated here are unknown, and all other
  /// values known.
  bool is_known(const at::Tensor& tensor) const;
  /// Returns whether the memory was allocated here and nothing was noted of it.
  bool is_untouched(const at::Tensor& tensor) const;

  /// Bytes that are live now, and the peak so far with its classes. A later assign() changes the peak of trace() but
  /// not this one.
  MemoryBytes live() const;
  MemoryBytes peak() const;
  int64_t allocations() const;

  /// Returns a copy of the trace so far.
  MemoryTrace trace() const;

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace trainkit
