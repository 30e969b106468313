#pragma once
/// The allocations and frees of a piece of work in order, and their prediction at another batch size.

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace trainkit {

/// Purpose of memory.
enum class MemoryClass : uint8_t {
  kWeights,      ///< Parameters and buffers.
  kGradients,    ///< Gradients of parameters.
  kOptimizer,    ///< State of the optimizer.
  kActivations,  ///< Tensors that forward saves for backward, and temporaries of a step.
  kBatch,        ///< The rows of a batch.
  kCache,        ///< Values computed once and kept: a scene on the device, embeddings of a frozen encoder.
  kWorkspace,    ///< Scratch memory of a kernel library (oneDNN), which differs on another device.
  kLibraries     ///< Memory that device libraries keep from LibTorch's allocator: workspaces of cuBLAS and cuBLASLt.
};
inline constexpr size_t kMemoryClasses = 8;
/// Returns "weights", "gradients", "optimizer", "activations", "batch", "cache", "workspace" or "libraries".
const char* to_string(MemoryClass kind);

/// Bytes of each class.
struct MemoryBytes {
  std::array<int64_t, kMemoryClasses> by_class = {};

  int64_t& operator[](MemoryClass kind) { return by_class[static_cast<size_t>(kind)]; }
  int64_t operator[](MemoryClass kind) const { return by_class[static_cast<size_t>(kind)]; }
  int64_t total() const;
};

/// Allocations and frees in their original order.
struct MemoryTrace {
  struct Block {
    int64_t bytes = 0;
    MemoryClass kind = MemoryClass::kActivations;
    /// Phases of work, counted from 0, in which the block was allocated and freed; kNever if it was not freed.
    int32_t phase = 0;
    int32_t freed_in = kNever;
    /// CUDA stream, or private pool of a CUDA graph, of the allocation. The allocator does not share free memory
    /// between them. 0 is the default stream.
    int32_t stream = 0;
  };
  static constexpr int32_t kNever = -1;
  /// The event at which the allocator returns unused memory to the driver.
  static constexpr int32_t kEmptyCache = 0;

  std::vector<Block> blocks;
  /// Events in order: i + 1 allocates block i, -(i + 1) frees it, kEmptyCache empties the cache.
  std::vector<int32_t> events;

  /// Largest number of live bytes, as requested, and their classes at that moment (the first one).
  MemoryBytes peak() const;
  /// Live bytes at the end.
  MemoryBytes live() const;
  /// Returns the same trace without the blocks of one class.
  MemoryTrace without(MemoryClass kind) const;
};

/// Predicts the trace of the same work at any batch size from its traces at two batch sizes.
///
/// Aligns the two traces: two blocks match if they have the same class, are allocated and freed in the same phases, and
/// have the same position in a longest common subsequence. The size of each block is then a line through its two
/// points, and the peak is that of the whole trace. The peak moves with the batch size from forward to backward to the
/// update; a line through two peaks cannot model this.
class ScalableTrace {
 public:
  /// `small` was recorded with `small_batch` rows and `large` with `large_batch` > `small_batch`, both in the same
  /// phases. Returns kFailedPrecondition if more than a tenth of the blocks have no counterpart: the work is then not
  /// the same.
  static absl::StatusOr<ScalableTrace> create(const MemoryTrace& small, int64_t small_batch, MemoryTrace large,
                                              int64_t large_batch);

  /// Returns the trace at `batch` rows, at least 1. Blocks that the small trace lacks are assumed to grow with the
  /// batch.
  MemoryTrace at(int64_t batch) const;

  /// Number of blocks of the larger trace without a counterpart in the smaller one.
  int64_t unmatched() const { return unmatched_; }

 private:
  MemoryTrace trace_;  // recorded at large_batch_
  std::vector<double> bytes_per_row_;
  int64_t large_batch_ = 0;
  int64_t unmatched_ = 0;
};

}  // namespace trainkit
