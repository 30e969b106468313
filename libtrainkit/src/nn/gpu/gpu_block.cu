// Residual, layer norm, bias and GELU on a GPU. Layer norm: a block or a warp processes one row at a time. GELU: a
// block processes a strip of columns, so that one thread sums each column over the rows. See Note [Sums in parts].
#include "nn/gpu/gpu_rows.cuh"

namespace trainkit::detail::on_gpu {
namespace {

constexpr int64_t kSharedFloats = 8192;  // per block; several blocks fit on a multiprocessor

/// Computes x + added, rounded to the stream's dtype.
template <typename S, typename P, int count>
__device__ void sum_at(const S* x, const P* added, int64_t at, float (&sum)[count]) {
  load(x + at, sum);
  if (!added) return;
  float more[count];
  load(added + at, more);
#pragma unroll
  for (int k = 0; k < count; ++k) sum[k] = to_float(from_float<S>(sum[k] + more[k]));
}

/// Keeps the row's sums in shared memory (`kept`) if they fit. Each thread reads only the values that it wrote.
template <typename S, typename P, int count>
__global__ void __launch_bounds__(kMostThreads) norm_kernel(NormArguments a, bool is_kept) {
  extern __shared__ __align__(32) float kept[];
  __shared__ float2 warps[2][kMostWarps];
  BlockReducer reduce(warps);
  const auto* x = static_cast<const S*>(a.x);
  const auto* added = static_cast<const P*>(a.added);
  const auto* weight = static_cast<const S*>(a.weight);
  const auto* bias = static_cast<const S*>(a.bias);
  auto* sum = static_cast<S*>(a.sum);
  auto* out = static_cast<P*>(a.out);
  const int64_t first = int64_t{threadIdx.x} * count, step = int64_t{blockDim.x} * count;
  const auto value_of = [&](int64_t row, int64_t c, float(&value)[count]) {
    if (is_kept)
      load(kept + c, value);
    else
      sum_at(x, added, row * a.width + c, value);
  };
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t at = row * a.width;
    float total = 0;
    for (int64_t c = first; c < a.width; c += step) {
      float value[count];
      sum_at(x, added, at + c, value);
      if (added) store(value, sum + at + c);
      if (is_kept) store(value, kept + c);
#pragma unroll
      for (int k = 0; k < count; ++k) total += value[k];
    }
    const float mean = reduce.sums({total, 0}).x / static_cast<float>(a.width);
    float squares = 0;
    for (int64_t c = first; c < a.width; c += step) {
      float value[count];
      value_of(row, c, value);
#pragma unroll
      for (int k = 0; k < count; ++k) squares += (value[k] - mean) * (value[k] - mean);
    }
    const float inverse_std = 1.0f / sqrtf(reduce.sums({squares, 0}).x / static_cast<float>(a.width) + a.eps);
    if (threadIdx.x == 0) {
      a.mean[row] = mean;
      a.inverse_std[row] = inverse_std;
    }
    for (int64_t c = first; c < a.width; c += step) {
      float value[count], factor[count], term[count] = {};
      value_of(row, c, value);
      load(weight + c, factor);
      if (bias) load(bias + c, term);
#pragma unroll
      for (int k = 0; k < count; ++k) value[k] = normalised(value[k], mean, inverse_std) * factor[k] + term[k];
      store(value, out + at + c);
    }
  }
}

/// Adds `values` to `sum`.
template <int count>
__device__ void add_to(float* sum, const float (&values)[count]) {
  float before[count];
  load(sum, before);
#pragma unroll
  for (int k = 0; k < count; ++k) before[k] += values[k];
  store(before, sum);
}

/// Copies this thread's columns of `width`, or zeros if `from` is null.
template <int count>
__device__ void copy_columns(const float* from, float* to, int64_t width) {
  for (int64_t c = int64_t{threadIdx.x} * count; c < width; c += int64_t{blockDim.x} * count) {
    float values[count] = {};
    if (from) load(from + c, values);
    store(values, to + c);
  }
}

/// Accumulates the sums over rows in `shared`, or in the block's part in global memory if they do not fit. Each thread
/// adds only to its own columns.
template <typename S, typename P, int count>
__global__ void __launch_bounds__(kMostThreads) norm_gradient_kernel(NormGradientArguments a, bool is_shared) {
  extern __shared__ __align__(32) float shared[];
  __shared__ float2 warps[2][kMostWarps];
  BlockReducer reduce(warps);
  const auto* d_out = static_cast<const P*>(a.d_out);
  const auto* d_residual = static_cast<const S*>(a.d_residual);
  const auto* sum = static_cast<const S*>(a.sum);
  const auto* weight = static_cast<const S*>(a.weight);
  auto* d_sum = static_cast<S*>(a.d_sum);
  auto* d_added = static_cast<P*>(a.d_added);
  const int64_t first = int64_t{threadIdx.x} * count, step = int64_t{blockDim.x} * count;
  const int64_t sums = a.d_bias ? 2 : 1;
  float* part = a.parts + blockIdx.x * sums * a.width;
  float* d_weight = is_shared ? shared : part;
  float* d_bias = d_weight + a.width;

  copy_columns<count>(nullptr, d_weight, a.width);
  if (a.d_bias) copy_columns<count>(nullptr, d_bias, a.width);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t at = row * a.width;
    const float mean = a.mean[row], inverse_std = a.inverse_std[row];
    float2 totals = {0, 0};
    for (int64_t c = first; c < a.width; c += step) {
      float gradient[count], value[count], factor[count], products[count];
      load(d_out + at + c, gradient);
      load(sum + at + c, value);
      load(weight + c, factor);
#pragma unroll
      for (int k = 0; k < count; ++k) {
        products[k] = gradient[k] * normalised(value[k], mean, inverse_std);
        totals.x += product(gradient[k], factor[k]);
        totals.y += products[k] * factor[k];
      }
      add_to(d_weight + c, products);
      if (a.d_bias) add_to(d_bias + c, gradient);
    }
    totals = reduce.sums(totals);
    const auto width = static_cast<float>(a.width);
    const NormSums means = {totals.x / width, totals.y / width};
    for (int64_t c = first; c < a.width; c += step) {
      float gradient[count], value[count], factor[count], residual[count] = {};
      load(d_out + at + c, gradient);
      load(sum + at + c, value);
      load(weight + c, factor);
      if (d_residual) load(d_residual + at + c, residual);
#pragma unroll
      for (int k = 0; k < count; ++k) {
        const float n = normalised(value[k], mean, inverse_std);
        residual[k] += norm_gradient(product(gradient[k], factor[k]), n, means, inverse_std);
      }
      store(residual, d_sum + at + c);
      if (d_added) store(residual, d_added + at + c);
    }
  }
  if (is_shared) {
    copy_columns<count>(d_weight, part, a.width);
    if (a.d_bias) copy_columns<count>(d_bias, part + a.width, a.width);
  }
}

constexpr int kRowWarps = 8, kMostValues = 24;

/// As norm_gradient_kernel for rows of at most kMostValues values per thread of a warp, which keeps a row in registers,
/// reads it once and waits for no other warp. A thread sums its columns over rows in registers; the block adds the sums
/// of its warps in order.
template <typename S, typename P, int count, int chunks, bool has_bias>
__global__ void __launch_bounds__(kRowWarps* kWarp, 1) norm_gradient_by_warps_kernel(NormGradientArguments a) {
  extern __shared__ __align__(32) float shared[];
  const auto* d_out = static_cast<const P*>(a.d_out);
  const auto* d_residual = static_cast<const S*>(a.d_residual);
  const auto* sum = static_cast<const S*>(a.sum);
  const auto* weight = static_cast<const S*>(a.weight);
  auto* d_sum = static_cast<S*>(a.d_sum);
  auto* d_added = static_cast<P*>(a.d_added);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto column = [&](int chunk) { return int64_t{chunk * kWarp + lane} * count; };
  float d_weight[chunks][count] = {}, d_bias[has_bias ? chunks : 1][count] = {};
  for (int64_t row = int64_t{blockIdx.x} * kRowWarps + warp; row < a.rows; row += int64_t{gridDim.x} * kRowWarps) {
    const float mean = a.mean[row], inverse_std = a.inverse_std[row];
    const int64_t at = row * a.width;
    float gradient[chunks][count] = {}, n[chunks][count] = {};
#pragma unroll
    for (int i = 0; i < chunks; ++i) {
      if (column(i) >= a.width) continue;
      load(d_out + at + column(i), gradient[i]);
      load(sum + at + column(i), n[i]);
    }
    float2 totals = {0, 0};
#pragma unroll
    for (int i = 0; i < chunks; ++i) {
      float factor[count] = {};
      if (column(i) < a.width) load(weight + column(i), factor);
#pragma unroll
      for (int k = 0; k < count; ++k) {
        n[i][k] = normalised(n[i][k], mean, inverse_std);
        d_weight[i][k] += gradient[i][k] * n[i][k];
        if constexpr (has_bias) d_bias[i][k] += gradient[i][k];
        gradient[i][k] = product(gradient[i][k], factor[k]);
        totals.x += gradient[i][k];
        totals.y += gradient[i][k] * n[i][k];
      }
    }
    totals = merge_warp(totals, added);
    const NormSums means = {totals.x / static_cast<float>(a.width), totals.y / static_cast<float>(a.width)};
#pragma unroll
    for (int i = 0; i < chunks; ++i) {
      if (column(i) >= a.width) continue;
      float residual[count] = {};
      if (d_residual) load(d_residual + at + column(i), residual);
#pragma unroll
      for (int k = 0; k < count; ++k) residual[k] += norm_gradient(gradient[i][k], n[i][k], means, inverse_std);
      store(residual, d_sum + at + column(i));
      if (d_added) store(residual, d_added + at + column(i));
    }
  }
  for (int turn = 0; turn < kRowWarps; ++turn) {
    for (int i = 0; i < chunks && turn == warp; ++i) {
      if (column(i) >= a.width) continue;
      if (turn == 0) {
        store(d_weight[i], shared + column(i));
        if constexpr (has_bias) store(d_bias[i], shared + a.width + column(i));
      } else {
        add_to(shared + column(i), d_weight[i]);
        if constexpr (has_bias) add_to(shared + a.width + column(i), d_bias[i]);
      }
    }
    __syncthreads();
  }
  float* part = a.parts + blockIdx.x * (has_bias ? 2 : 1) * a.width;
  for (int64_t c = threadIdx.x; c < (has_bias ? 2 : 1) * a.width; c += blockDim.x) part[c] = shared[c];
}

/// Launches norm_gradient_by_warps_kernel with 1, 3 or 6 chunks, which hold a row. Returns false if none does.
template <typename S, typename P, int count, bool has_bias, int chunks = 1, int more = chunks == 1 ? 3 : 2 * chunks>
bool launch_by_warps(const NormGradientArguments& a, unsigned blocks, cudaStream_t stream) {
  if constexpr (count == 1 || chunks * count > kMostValues) {
    return false;
  } else if (a.width > int64_t{chunks} * kWarp * count) {
    return launch_by_warps<S, P, count, has_bias, more>(a, blocks, stream);
  } else {
    norm_gradient_by_warps_kernel<S, P, count, chunks, has_bias>
        <<<blocks, kRowWarps * kWarp, (has_bias ? 2 : 1) * a.width * sizeof(float), stream>>>(a);
    return true;
  }
}

constexpr int kGroups = 8;  // groups of threads that share the parts of a column

/// Adds parts (count, sums, width): the first sums to `first`, the second sums, if present, to `second`.
template <typename T>
__global__ void __launch_bounds__(kWarp* kGroups)
    add_parts_kernel(const float* __restrict__ parts, int64_t count, int64_t width, int64_t sums, T* first, T* second) {
  __shared__ float groups[kGroups][kWarp];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x, columns = sums * width;
  float total = 0;
  if (column < columns) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < count; part += kGroups) total += parts[part * columns + column];
  }
  groups[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int group = 1; group < kGroups; ++group) total += groups[group][threadIdx.x];
  if (column < width)
    first[column] = from_float<T>(total);
  else
    second[column - width] = from_float<T>(total);
}

template <typename T>
void add_parts(const float* parts, int64_t count, int64_t width, void* first, void* second, cudaStream_t stream) {
  const int64_t sums = second ? 2 : 1;
  add_parts_kernel<T><<<static_cast<unsigned>(ceil_div(sums * width, kWarp)), dim3(kWarp, kGroups), 0, stream>>>(
      parts, count, width, sums, static_cast<T*>(first), static_cast<T*>(second));
}

/// Each thread owns `count` columns and keeps their bias in registers; blocks take every gridDim.y-th row.
template <typename S, typename P, int count>
__global__ void __launch_bounds__(kMostThreads) gelu_kernel(GeluArguments a) {
  const int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * count;
  if (c >= a.width) return;
  const auto* x = static_cast<const P*>(a.x) + c;
  auto* out = static_cast<P*>(a.out) + c;
  float bias[count];
  load(static_cast<const S*>(a.bias) + c, bias);
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    float value[count];
    load(x + row * a.width, value);
#pragma unroll
    for (int k = 0; k < count; ++k) value[k] = gelu_of(value[k] + bias[k], a.by_tanh);
    store(value, out + row * a.width);
  }
}

template <typename S, typename P, int count>
__global__ void __launch_bounds__(kMostThreads) gelu_gradient_kernel(GeluGradientArguments a) {
  const int64_t c = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * count;
  if (c >= a.width) return;
  const auto* x = static_cast<const P*>(a.x) + c;
  const auto* d_out = static_cast<const P*>(a.d_out) + c;
  auto* d_x = static_cast<P*>(a.d_x) + c;
  float bias[count], total[count] = {};
  load(static_cast<const S*>(a.bias) + c, bias);
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    float value[count], gradient[count];
    load(x + row * a.width, value);
    load(d_out + row * a.width, gradient);
#pragma unroll
    for (int k = 0; k < count; ++k) {
      gradient[k] *= gelu_slope_of(value[k] + bias[k], a.by_tanh);
      total[k] += gradient[k];
    }
    store(gradient, d_x + row * a.width);
  }
  store(total, a.parts + blockIdx.y * a.width + c);
}

/// Grid and block size for threads that own `count` columns each.
struct Strips {
  Strips(int64_t width, int count, int64_t parts) {
    constexpr unsigned kMost = 128;
    const unsigned wanted = threads_for(width, count);
    threads = wanted < kMost ? wanted : kMost;
    grid = {static_cast<unsigned>(ceil_div(width, int64_t{threads} * count)), static_cast<unsigned>(parts)};
  }
  dim3 grid;
  unsigned threads;
};

}  // namespace

int run(const NormArguments& a, Numbers numbers, void* stream) {
  if (a.rows == 0) return cudaSuccess;
  return for_numbers<__nv_bfloat16, __half>(numbers, [&](auto s, auto p) {
    using S = decltype(s);
    using P = decltype(p);
    return for_vector_width<S, P>(a.width, {a.x, a.weight, a.bias, a.sum}, {a.added, a.out}, [&](auto values) {
      constexpr int count = decltype(values)::value;
      const bool is_kept = a.width <= kSharedFloats;
      norm_kernel<S, P, count><<<blocks_for(a.rows), threads_for(a.width, count), is_kept ? a.width * 4 : 0,
                                 static_cast<cudaStream_t>(stream)>>>(a, is_kept);
    });
  });
}

int run(const NormGradientArguments& a, Numbers numbers, void* stream) {
  auto* const on = static_cast<cudaStream_t>(stream);
  const int64_t parts = parts_of(a.rows, a.width), sums = (a.d_bias ? 2 : 1) * a.width;
  return for_numbers<__nv_bfloat16, __half>(numbers, [&](auto s, auto p) {
    using S = decltype(s);
    using P = decltype(p);
    if (a.rows > 0) {
      for_vector_width<S, P>(a.width, {a.d_residual, a.sum, a.weight, a.d_sum}, {a.d_out, a.d_added}, [&](auto values) {
        constexpr int count = decltype(values)::value;
        const auto blocks = static_cast<unsigned>(parts);
        const bool is_done = a.d_bias ? launch_by_warps<S, P, count, true>(a, blocks, on)
                                      : launch_by_warps<S, P, count, false>(a, blocks, on);
        const bool is_shared = sums <= kSharedFloats;
        if (is_done) return;
        norm_gradient_kernel<S, P, count>
            <<<blocks, threads_for(a.width, count), is_shared ? sums * 4 : 0, on>>>(a, is_shared);
      });
    }
    add_parts<S>(a.parts, parts, a.width, a.d_weight, a.d_bias, on);
    return cudaGetLastError();
  });
}

int run(const GeluArguments& a, Numbers numbers, void* stream) {
  if (a.rows == 0) return cudaSuccess;
  return for_numbers<__nv_bfloat16, __half>(numbers, [&](auto s, auto p) {
    using S = decltype(s);
    using P = decltype(p);
    return for_vector_width<S, P>(a.width, {a.bias}, {a.x, a.out}, [&](auto values) {
      constexpr int count = decltype(values)::value;
      constexpr int64_t kRows = 4, kMostParts = 4096;
      const int64_t parts = ceil_div(a.rows, kRows);
      const Strips strips(a.width, count, parts < kMostParts ? parts : kMostParts);
      gelu_kernel<S, P, count><<<strips.grid, strips.threads, 0, static_cast<cudaStream_t>(stream)>>>(a);
    });
  });
}

int run(const GeluGradientArguments& a, Numbers numbers, void* stream) {
  auto* const on = static_cast<cudaStream_t>(stream);
  const int64_t parts = parts_of(a.rows, a.width);
  return for_numbers<__nv_bfloat16, __half>(numbers, [&](auto s, auto p) {
    using S = decltype(s);
    using P = decltype(p);
    if (a.rows > 0) {
      for_vector_width<S, P>(a.width, {a.bias}, {a.d_out, a.x, a.d_x}, [&](auto values) {
        constexpr int count = decltype(values)::value;
        const Strips strips(a.width, count, parts);
        gelu_gradient_kernel<S, P, count><<<strips.grid, strips.threads, 0, on>>>(a);
      });
    }
    add_parts<S>(a.parts, parts, a.width, a.d_bias, nullptr, on);
    return cudaGetLastError();
  });
}

}  // namespace trainkit::detail::on_gpu
