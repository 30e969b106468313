#pragma once
// Frees memory for a step that has run out of it.

#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

#include <functional>
#include <string>

namespace trainkit::detail {

class StepGraphs;

// Note [Stages of an update]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// An update that fails halfway would leave weights, optimizer state and schedule inconsistent, and a retry would apply
// a part of it twice. The update is therefore divided into stages, each run by MemoryRecovery::run(). A stage must
// allocate everything that it needs before it changes anything (compute into temporaries, then assign). Then an
// out-of-memory error means that the stage has had no effect and can be run again: first after emptying the device's
// cache, then after dropping graphs or release_memory().

/// Memory is freed in this order: captured graphs, then (by the caller) smaller micro-batches, then release_memory()
/// with one row per replica. Used by one thread.
class MemoryRecovery {
 public:
  /// @param device of the replicas
  /// @param release TrainStepOptions::release_memory, may be empty
  MemoryRecovery(at::Device device, std::function<bool()> release);
  MemoryRecovery(const MemoryRecovery&) = delete;
  MemoryRecovery& operator=(const MemoryRecovery&) = delete;

  /// Captured steps whose memory can be freed, or null. They outlive the calls of this object.
  void use_graphs(StepGraphs* graphs) { graphs_ = graphs; }
  /// While a step is being captured, run() frees nothing and throws at once.
  void set_capturing(bool capturing) { is_capturing_ = capturing; }

  /// Runs a stage that has no effect if it runs out of memory; frees memory and runs it again, twice at most.
  void run(c10::function_ref<void()> stage);

  /// Prepares another attempt of a step that ran out of memory: drops graphs, or else, unless smaller parts are
  /// possible, calls release_memory(). Returns whether another attempt may succeed.
  bool prepare_retry(bool can_split);
  /// Returns whether the last prepare_retry() has freed memory, so that the next attempt needs no smaller parts.
  bool has_freed() const { return has_freed_; }
  void forget_freed() { has_freed_ = false; }

  /// Drops all graphs for good; returns false, and does nothing, if there are none.
  bool drop_graphs(const std::string& reason = "out of memory in a step that was not captured");
  /// Returns the cached memory of the replicas' devices. Nothing on the CPU.
  void empty_cache() const;

 private:
  at::Device device_;
  std::function<bool()> release_;
  StepGraphs* graphs_ = nullptr;
  bool is_capturing_ = false;
  bool has_freed_ = false;
};

}  // namespace trainkit::detail
