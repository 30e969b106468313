// Makes triplets on the GPU, one thread per row. See Note [Negative draw] in triplet_draw.h.
#include <cuda_runtime.h>

#include "triplet_draw.h"

namespace trainkit::rec::detail {
namespace {

constexpr int kThreads = 256;

__global__ void draw_triplets_kernel(TripletTables tables, const int64_t* __restrict__ rows,
                                     const int64_t* __restrict__ keys, int64_t count, int64_t* __restrict__ users,
                                     int64_t* __restrict__ positives, int64_t* __restrict__ negatives) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = rows[i];
  if (row < 0 || row >= tables.rows) __trap();
  const uint64_t pair = tables.pairs[row];
  users[i] = static_cast<int64_t>(pair >> 32);
  positives[i] = static_cast<int64_t>(pair & 0xffffffffu);
  negatives[i] = draw_negative(tables, static_cast<uint32_t>(row), static_cast<uint64_t>(keys[i]));
}

}  // namespace

int launch_draw_triplets(const TripletTables& tables, const int64_t* rows, const int64_t* keys, int64_t count,
                         int64_t* users, int64_t* positives, int64_t* negatives, void* stream) {
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  draw_triplets_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(tables, rows, keys, count, users,
                                                                                   positives, negatives);
  return cudaGetLastError();
}

}  // namespace trainkit::rec::detail
