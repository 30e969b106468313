#pragma once
/// Counts what LibTorch allocates on the CPU.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "trainkit/memory/memory_trace.h"

namespace trainkit {

/// Records every CPU allocation of a scope, each with its class.
///
///   MemoryRecorder recorder(MemoryClass::kWeights);
///   Net model(64, 10);
///   recorder.enter(MemoryClass::kActivations);
///   loss(model, batch).backward();
///   for (const auto& p : model->parameters()) recorder.assign(p.grad(), MemoryClass::kGradients);
///   MemoryBytes peak = recorder.peak();
///
/// While it lives it stands before LibTorch's CPU allocator; at its end that one is back. Memory may outlive the scope,
/// and memory from before may be freed in it: the former is then no longer counted, the latter never is. Counted is
/// what was asked for, without malloc's own. In the trace, what kernel libraries take for themselves becomes kWorkspace
/// when they give it back, and so does what comes and goes in the bodies of an at::parallel_for: one block, however
/// many pieces it was.
///
/// One at a time in a process (c10::Error otherwise). Allocations of every thread are recorded; one that
/// begins just as the recorder is made or destroyed is counted or not.
class MemoryRecorder {
 public:
  /// With `keep_trace` false only the sums are kept, not the events: for work of any length.
  explicit MemoryRecorder(MemoryClass kind = MemoryClass::kActivations, bool keep_trace = true);
  ~MemoryRecorder();
  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;

  /// From here on a new phase begins, in which allocations are of `kind`.
  void enter(MemoryClass kind);
  /// From here on allocations are in `stream` (MemoryTrace::Block).
  void set_stream(int32_t stream);
  /// Adds a block that was not allocated here, but would be on another device, and is never freed.
  void add(int64_t bytes, MemoryClass kind);
  /// Adds blocks that were not allocated here and live together, and frees them at once.
  void pass(std::span<const int64_t> bytes, MemoryClass kind);
  /// Blocks of the trace that were allocated after the first `allocation` ones (allocations()), and freed, are of
  /// `kind` after all.
  void assign_freed_since(int64_t allocation, MemoryClass kind);
  /// Adds MemoryTrace::kEmptyCache.
  void empty_cache();
  /// `tensor`'s memory is of `kind` after all. Nothing if it is not defined or was allocated elsewhere.
  void assign(const at::Tensor& tensor, MemoryClass kind);

  /// Bytes that live now, and the most that did so far with what they were then. A peak does not change when an
  /// assign() comes later; that of trace() does.
  MemoryBytes live() const;
  MemoryBytes peak() const;
  int64_t allocations() const;

  /// All so far.
  MemoryTrace trace() const;

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace trainkit
