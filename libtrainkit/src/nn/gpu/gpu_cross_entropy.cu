// Cross-entropy on a GPU without a tensor of probabilities: a block of threads reads a row of logits once for the loss
// and once for the gradient.
#include "nn/gpu/gpu_rows.cuh"

namespace trainkit::detail::on_gpu {
namespace {

/// Calls many(place) for each group of `count` values at a 16-byte boundary and one(place) for the values before and
/// after them, each from one thread of the block. Rows of odd width start at any alignment. @param row start of the
/// row.
template <int count, typename T, typename Many, typename One>
__device__ void for_row(const T* row, int64_t width, const Many& many, const One& one) {
  int64_t begin = 0, end = 0;
  if constexpr (count > 1) {
    constexpr uintptr_t kBytes = sizeof(T) * count;
    begin = static_cast<int64_t>((kBytes - reinterpret_cast<uintptr_t>(row) % kBytes) % kBytes / sizeof(T));
    if (begin > width) begin = width;
    end = begin + (width - begin) / count * count;
    for (int64_t c = begin + int64_t{threadIdx.x} * count; c < end; c += int64_t{blockDim.x} * count) many(c);
  }
  for (int64_t c = threadIdx.x; c < begin; c += blockDim.x) one(c);
  for (int64_t c = end + threadIdx.x; c < width; c += blockDim.x) one(c);
}

__device__ bool counts(const int64_t target, int64_t classes, int64_t ignore_index) {
  if (target == ignore_index) return false;
  if (target < 0 || target >= classes) __trap();
  return true;
}

/// Returns the maximum of a row and log sum e^(logit - maximum), in all threads of the block.
template <int count, typename T>
__device__ float2 log_sums_of(const T* logits, int64_t classes, BlockReducer& reduce) {
  ExpSum mine;
  const auto add = [&](auto values, int64_t c) {
    float x[decltype(values)::value];
    load(logits + c, x);
    add_values(mine, x);
  };
  for_row<count>(
      logits, classes, [&](int64_t c) { add(std::integral_constant<int, count>{}, c); },
      [&](int64_t c) { add(std::integral_constant<int, 1>{}, c); });
  const float2 all = reduce({mine.max, mine.sum}, [](float2 x, float2 y) {
    const ExpSum both = merged({x.x, x.y}, {y.x, y.y});
    return float2{both.max, both.sum};
  });
  return {all.x, logf(all.y)};
}

/// Writes the gradient of a row's loss times `scale`, zeros if the row is not counted. `gradient` may be `logits`.
template <int count, typename T>
__device__ void write_gradient(const T* logits, T* gradient, int64_t classes, int64_t target, bool is_counted,
                               float2 log_sums, float scale) {
  const auto write = [&](auto values, int64_t c) {
    constexpr int n = decltype(values)::value;
    float x[n] = {};
    if (is_counted) {
      load(logits + c, x);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        x[k] = cross_entropy_slope(log_softmax(x[k], log_sums.x, log_sums.y), c + k == target, scale);
      }
    }
    store(x, gradient + c);
  };
  for_row<count>(
      logits, classes, [&](int64_t c) { write(std::integral_constant<int, count>{}, c); },
      [&](int64_t c) { write(std::integral_constant<int, 1>{}, c); });
}

template <typename T, int count>
__global__ void __launch_bounds__(kMostThreads) losses_kernel(CrossEntropyArguments a) {
  __shared__ float2 warps[2][kMostWarps];
  BlockReducer reduce(warps);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t target = a.target[row];
    if (!counts(target, a.classes, a.ignore_index)) {
      if (threadIdx.x == 0) a.losses[row] = a.log_sums[2 * row] = a.log_sums[2 * row + 1] = 0;
      continue;
    }
    const T* logits = static_cast<const T*>(a.logits) + row * a.classes;
    const float2 sums = log_sums_of<count>(logits, a.classes, reduce);
    if (threadIdx.x > 0) continue;
    a.log_sums[2 * row] = sums.x;
    a.log_sums[2 * row + 1] = sums.y;
    a.losses[row] = -log_softmax(to_float(logits[target]), sums.x, sums.y);
  }
}

/// Uses a single block, so that the order of the sum is fixed.
template <typename Loss>
__global__ void __launch_bounds__(kMostThreads) mean_kernel(MeanLossArguments a) {
  __shared__ float2 warps[2][kMostWarps];
  BlockReducer reduce(warps);
  float2 mine = {0, 0};
#pragma unroll 8  // one block reads all rows: several loads at a time
  for (int64_t row = threadIdx.x; row < a.rows; row += blockDim.x) {
    const bool is_counted = a.target[row] != a.ignore_index;
    const float loss = a.losses[row];
    mine.x += is_counted ? loss : 0.0f;
    mine.y += is_counted ? 1.0f : 0.0f;  // exact up to 2^24 rows per thread
  }
  const float2 all = reduce.sums(mine);
  if (threadIdx.x > 0) return;
  *a.inverse_count = all.y > 0 ? 1.0f / all.y : 0.0f;
  *static_cast<Loss*>(a.loss) = from_float<Loss>(all.x / all.y);
}

template <typename T, typename Loss, int count>
__global__ void __launch_bounds__(kMostThreads) logits_gradient_kernel(CrossEntropyGradientArguments a) {
  const float scale = to_float(*static_cast<const Loss*>(a.d_loss)) * *a.inverse_count;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t target = a.target[row], at = row * a.classes;
    const bool is_counted = counts(target, a.classes, a.ignore_index);
    write_gradient<count>(static_cast<const T*>(a.logits) + at, static_cast<T*>(a.d_logits) + at, a.classes, target,
                          is_counted, {a.log_sums[2 * row], a.log_sums[2 * row + 1]}, scale);
  }
}

/// The loss of a row and, in place of its logits, the loss's gradient: the second read comes from the cache.
template <typename T, int count>
__global__ void __launch_bounds__(kMostThreads) row_losses_kernel(RowLossArguments a) {
  __shared__ float2 warps[2][kMostWarps];
  BlockReducer reduce(warps);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t target = a.target[row];
    const bool is_counted = counts(target, a.classes, a.ignore_index);
    T* logits = static_cast<T*>(a.logits) + row * a.stride;
    float2 sums = {0, 0};
    if (is_counted) {
      const float wanted = to_float(logits[target]);  // read before the barrier, written after it
      sums = log_sums_of<count>(logits, a.classes, reduce);
      if (threadIdx.x == 0) a.losses[row] = -log_softmax(wanted, sums.x, sums.y);
    } else if (threadIdx.x == 0) {
      a.losses[row] = 0;
    }
    if (a.differentiates) write_gradient<count>(logits, logits, a.classes, target, is_counted, sums, 1.0f);
  }
}

}  // namespace

int run(const RowLossArguments& a, Numbers numbers, void* stream) {
  if (a.rows == 0) return cudaSuccess;
  return for_numbers<__nv_bfloat16, __half>(numbers, [&](auto, auto logit) {
    using T = decltype(logit);
    constexpr int kMany = 16 / sizeof(T);
    row_losses_kernel<T, kMany>
        <<<blocks_for(a.rows), threads_for(a.classes, kMany), 0, static_cast<cudaStream_t>(stream)>>>(a);
    return cudaGetLastError();
  });
}

int run(const MeanLossArguments& a, Numbers numbers, void* stream) {
  return for_numbers<__nv_bfloat16, __half>(numbers, [&](auto loss, auto) {
    mean_kernel<decltype(loss)><<<1, kMostThreads, 0, static_cast<cudaStream_t>(stream)>>>(a);
    return cudaGetLastError();
  });
}

int run(const CrossEntropyArguments& a, Numbers numbers, void* stream) {
  auto* const on = static_cast<cudaStream_t>(stream);
  return for_numbers<__nv_bfloat16, __half>(numbers, [&](auto loss, auto logit) {
    using T = decltype(logit);
    constexpr int kMany = 16 / sizeof(T);
    if (a.rows > 0) {
      losses_kernel<T, kMany><<<blocks_for(a.rows), threads_for(a.classes, kMany), 0, on>>>(a);
    }
    mean_kernel<decltype(loss)><<<1, kMostThreads, 0, on>>>(
        MeanLossArguments{a.rows, a.ignore_index, a.target, a.losses, a.inverse_count, a.loss});
    return cudaGetLastError();
  });
}

int run(const CrossEntropyGradientArguments& a, Numbers numbers, void* stream) {
  if (a.rows == 0) return cudaSuccess;
  auto* const on = static_cast<cudaStream_t>(stream);
  return for_numbers<__nv_bfloat16, __half>(numbers, [&](auto loss, auto logit) {
    using T = decltype(logit);
    constexpr int kMany = 16 / sizeof(T);
    // Vector loads and stores require that both pointers have the same offset from a 16-byte boundary.
    const auto place = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16; };
    const unsigned blocks = blocks_for(a.rows), threads = threads_for(a.classes, kMany);
    if (place(a.logits) == place(a.d_logits)) {
      logits_gradient_kernel<T, decltype(loss), kMany><<<blocks, threads, 0, on>>>(a);
    } else {
      logits_gradient_kernel<T, decltype(loss), 1><<<blocks, threads, 0, on>>>(a);
    }
    return cudaGetLastError();
  });
}

}  // namespace trainkit::detail::on_gpu
