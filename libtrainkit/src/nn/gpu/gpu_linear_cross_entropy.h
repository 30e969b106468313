#pragma once
/// The output layer and the loss of a language model on a GPU, without the logits of all rows.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trainkit::detail {

/// Returns whether gpu_linear_cross_entropy supports these arguments: runs_gpu_operations, hidden (N, D), weight (C, D)
/// with many classes, target (N) int64 contiguous, all on one device.
bool has_gpu_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target);

/// The mean loss, and the gradients of the *sum* of the rows' losses; those of the mean are `inverse_count` times as
/// large. Undefined if not wanted.
struct GpuHeadResult {
  at::Tensor loss;           // scalar of the inputs' dtype, float32 under autocast
  at::Tensor hidden;         // (N, D), of the products' dtype
  at::Tensor weight;         // (C, D) float32
  at::Tensor inverse_count;  // scalar, float32: 1 / number of counted rows, 0 if there are none
};

/// Computes without autograd. Neither synchronises nor waits; can be captured in a CUDA graph.
GpuHeadResult gpu_linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                                       int64_t ignore_index, bool for_hidden, bool for_weight);

}  // namespace trainkit::detail
