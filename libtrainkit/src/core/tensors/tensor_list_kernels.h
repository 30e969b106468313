#pragma once
/// The CUDA kernels of core/tensors/tensor_lists.h on plain memory. They return the cudaError_t of the launch; `stream`
/// is a cudaStream_t. C++17 without LibTorch, since nvcc compiles it too.

#include <cstdint>

#ifdef __CUDACC__
#define TRAINKIT_DEVICE __device__
#else
#define TRAINKIT_DEVICE
#endif

namespace trainkit::detail {

/// Number of tensors that one launch takes.
constexpr int kMostTensors = 128;

struct TensorList {
  float* data[kMostTensors];
  int64_t sizes[kMostTensors];
  int count = 0;
};

/// Values that a block of a kernel takes at least, four for each of its threads.
constexpr int64_t kLeastChunk = 1024;

/// Divides the values of up to kMostTensors tensors among the blocks of a kernel: a block takes `size` neighbouring
/// values of one tensor, fewer at its end. Depends only on the sizes, so sums over chunks are bitwise repeatable.
template <int most = kMostTensors>
struct Chunks {
  int64_t size = kLeastChunk;
  int first[most + 1] = {};  // block at which each tensor begins; then the number of blocks

  /// A list of `sizes` is divided into small chunks that occupy a GPU, a large one into few.
  static Chunks of(const int64_t* sizes, int count) {
    constexpr int64_t kBlocks = 2048;
    int64_t total = 0;
    for (int t = 0; t < count; ++t) total += sizes[t];
    Chunks chunks;
    chunks.size = (total / kBlocks / kLeastChunk + 1) * kLeastChunk;
    for (int t = 0; t < count; ++t) {
      chunks.first[t + 1] = chunks.first[t] + static_cast<int>((sizes[t] + chunks.size - 1) / chunks.size);
    }
    return chunks;
  }

  int blocks(int count) const { return first[count]; }

  /// The values of one block: `size` from position `begin` of a tensor on.
  struct Part {
    int tensor;
    int64_t begin, size;
  };

  TRAINKIT_DEVICE Part part_of(int block, const int64_t* sizes, int count) const {
    int low = 0, high = count;  // the last tensor that begins at this block or before
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first[middle] <= block) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const int64_t begin = (block - first[low]) * size, left = sizes[low] - begin;
    return {low, begin, left < size ? left : size};
  }
};

/// Multiplies the tensors in place: by `*value`, or with `max_norm` >= 0 by min(1, max_norm / (*value + 1e-6)), which
/// is NaN if `*value` is. Ends at once if the factor is 1.
int launch_scale(const TensorList& tensors, const float* value, float max_norm, void* stream);

/// Multiplies the tensors in place by `*value`, and sets `*found_inf` to 1 if a result is not finite.
int launch_unscale(const TensorList& tensors, const float* value, float* found_inf, void* stream);

/// Writes the sum of the squares of each of Chunks<>::of(sizes) to `sums`.
int launch_squares(const TensorList& tensors, float* sums, void* stream);

/// Writes the square root of the sum of `count` values to `norm`, always added in the same order.
int launch_norm(const float* sums, int64_t count, float* norm, void* stream);

/// Bytes of tensors and where they go.
struct CopyList {
  const void* from[kMostTensors];
  void* to[kMostTensors];
  int64_t sizes[kMostTensors];
  int count = 0;
};

/// Copies, with `condition` only if `*condition` is not 0.
int launch_copy(const CopyList& bytes, const float* condition, void* stream);

/// Float32 tensors and where their values go in 16 bits.
struct CastList {
  const float* from[kMostTensors];
  void* to[kMostTensors];
  int64_t sizes[kMostTensors];
  int count = 0;
};

/// Converts to bfloat16, or to float16 unless `to_bfloat16`, rounded to the nearest.
int launch_cast(const CastList& tensors, bool to_bfloat16, void* stream);

}  // namespace trainkit::detail
