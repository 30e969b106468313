#pragma once
/// The allocations and frees of a piece of work in order.

#include <array>
#include <cstddef>
#include <cstdint>
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
  kLibraries     ///< Memory that device libraries take from LibTorch's allocator: workspaces of cuBLAS and cuBLASLt.
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

/// Counters of the device's allocator, in bytes: torch.cuda.max_memory_allocated() and max_memory_reserved().
struct DeviceMemory {
  /// Blocks in use, each rounded up to 512 bytes.
  int64_t allocated_bytes = 0;
  /// Segments obtained from the driver, used or not.
  int64_t reserved_bytes = 0;
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
  /// Whether the work was computed, because it reads values or has 16-bit convolutions on the CPU. Otherwise only its
  /// shapes were.
  bool is_computed = false;

  /// Largest number of live bytes, as requested, and their classes at that moment (the first one).
  MemoryBytes peak() const;
  /// Live bytes at the end.
  MemoryBytes live() const;
  /// Returns the same trace without the blocks of one class.
  MemoryTrace without(MemoryClass kind) const;
};

}  // namespace trainkit
