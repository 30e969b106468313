#pragma once
/// A pre-norm Transformer block on a GPU with two autograd nodes around its attention, instead of about twenty.
///
/// The kernels are those of fused_ops.h and LibTorch's matrix products, and the results have the same bits as
/// residual_block() with them, except that gradients of weights are not rounded to the dtype of the products. The host
/// needs less time: LibTorch spends more of it on the nodes of a graph than on the launches of a small model's kernels.

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "nn/cpu/fused_block.h"
#include "nn/gpu/fused_ops.h"

namespace trainkit::detail {

/// Returns whether fused_gpu_block supports these arguments: x (B, T, C) and all weights contiguous, on one device and
/// of one dtype, on which runs_gpu_operations; no dropout, which the caller checks. False if no gradient is needed:
/// separate operations then free their tensors earlier.
bool has_fused_gpu_block(const ResidualStream& x, const BlockWeights& weights, const BlockOptions& options);

/// Computes the block's output, each tensor (B, T, C). Frees x when it is added. `attention` mixes queries, keys and
/// values, each (B, heads, T, C / heads), to a tensor of the same shape, with gradients. BlockOptions::scale is not
/// used. Nothing synchronises; can be captured in a CUDA graph. No second derivative: c10::NotImplementedError with
/// create_graph.
ResidualStream fused_gpu_block(
    ResidualStream x, const BlockWeights& weights, const BlockOptions& options,
    c10::function_ref<at::Tensor(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value)> attention);

}  // namespace trainkit::detail
