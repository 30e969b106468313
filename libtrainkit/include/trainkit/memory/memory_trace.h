#pragma once
/// What a piece of work allocates and frees, in order, and what it would at another batch size.

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace trainkit {

/// What memory is for.
enum class MemoryClass : uint8_t {
  kWeights,      ///< Parameters and buffers.
  kGradients,    ///< Gradients of parameters.
  kOptimizer,    ///< What the optimizer keeps.
  kActivations,  ///< What forward keeps for backward, and all that comes and goes within a step.
  kBatch,        ///< The rows of a batch.
  kCache,        ///< What is computed once and kept: a scene on the device, embeddings of a frozen encoder.
  kWorkspace,    ///< Scratch memory of a kernel library (oneDNN), which another device's library takes otherwise.
  kLibraries     ///< What libraries of the device keep from LibTorch's allocator: workspaces of cuBLAS and cuBLASLt.
};
inline constexpr size_t kMemoryClasses = 8;
/// "weights", "gradients", "optimizer", "activations", "batch", "cache", "workspace", "libraries".
const char* to_string(MemoryClass kind);

/// Bytes of each class.
struct MemoryBytes {
  std::array<int64_t, kMemoryClasses> by_class = {};

  int64_t& operator[](MemoryClass kind) { return by_class[static_cast<size_t>(kind)]; }
  int64_t operator[](MemoryClass kind) const { return by_class[static_cast<size_t>(kind)]; }
  int64_t total() const;
};

/// Allocations and frees in the order in which they came.
struct MemoryTrace {
  struct Block {
    int64_t bytes = 0;
    MemoryClass kind = MemoryClass::kActivations;
    /// The stretches of work, counted from 0, in which it was allocated and freed; never freed: kNever.
    int32_t phase = 0;
    int32_t freed_in = kNever;
    /// The CUDA stream, or private pool of a CUDA graph, that it is allocated in: the allocator gives free memory of
    /// one to no other. 0 is the default stream.
    int32_t stream = 0;
  };
  static constexpr int32_t kNever = -1;
  /// The event at which the allocator gives unused memory back to the driver.
  static constexpr int32_t kEmptyCache = 0;

  std::vector<Block> blocks;
  /// Block i + 1 stands for its allocation, -(i + 1) for its end; or kEmptyCache.
  std::vector<int32_t> events;

  /// The most bytes that live at once, as asked for, and what they are at that moment (the first such).
  MemoryBytes peak() const;
  /// What lives at the end.
  MemoryBytes live() const;
  /// The same without the blocks of one class.
  MemoryTrace without(MemoryClass kind) const;
};

/// The trace of the same work at any batch size, from its traces at two.
///
/// The two are aligned: a block of one is that of the other which stands in the same order, is of the same class, and
/// is allocated and freed in the same stretches of work (a longest common subsequence). Each size is then
/// a line through its two points, and the peak that of the whole trace, wherever it falls: with the batch it moves
/// from forward to backward to the update, which a line through two peaks cannot follow.
class ScalableTrace {
 public:
  /// `small` was recorded with `small_batch` rows, `large` with `large_batch` > `small_batch`, both in the same phases.
  /// kFailedPrecondition if more than a tenth of the blocks has no counterpart: then the work is not the same.
  static absl::StatusOr<ScalableTrace> create(const MemoryTrace& small, int64_t small_batch, MemoryTrace large,
                                              int64_t large_batch);

  /// The trace at `batch` rows, at least 1. Blocks that the small trace lacks are taken to grow with the batch.
  MemoryTrace at(int64_t batch) const;

  /// Blocks of the larger trace that the smaller one lacks.
  int64_t unmatched() const { return unmatched_; }

 private:
  MemoryTrace trace_;  // of large_batch_
  std::vector<double> bytes_per_row_;
  int64_t large_batch_ = 0;
  int64_t unmatched_ = 0;
};

}  // namespace trainkit
