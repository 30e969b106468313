#pragma once
/// A pre-norm Transformer block on the CPU as one autograd node: x + attention(norm(x)), then x + mlp(norm(x)).

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/cpu/attention_kernel.h"
#include "nn/cpu/block_kernels.h"

namespace trainkit::detail {

/// Float32 weights of a block. Biases may be undefined.
struct BlockWeights {
  at::Tensor ln_1, ln_1_bias;
  at::Tensor qkv, qkv_bias;    // C to 3C: queries, keys and values in one product
  at::Tensor proj, proj_bias;  // C to C, output projection of attention
  at::Tensor ln_2, ln_2_bias;
  at::Tensor fc, fc_bias;    // C to F
  at::Tensor out, out_bias;  // F to C
};

/// Collects the weights of a block's modules, whose parameters are named `weight` and `bias`.
template <typename Norm, typename Projection>
BlockWeights block_weights(const Norm& ln_1, const Projection& qkv, const Projection& proj, const Norm& ln_2,
                           const Projection& fc, const Projection& out) {
  return {ln_1->weight, ln_1->bias, qkv->weight, qkv->bias, proj->weight, proj->bias,
          ln_2->weight, ln_2->bias, fc->weight,  fc->bias,  out->weight,  out->bias};
}

struct BlockOptions {
  int64_t n_heads;
  /// Factor of the attention scores.
  double scale;
  double eps;
  Activation activation;
  /// Matrices are (in, out), as in GPT-2's Conv1D, instead of (out, in).
  bool weights_are_transposed;
};

/// Returns whether fused_block supports these arguments: all tensors on the CPU, float32 and contiguous; x (B, T, C);
/// heads that attention_kernel.h supports; F a multiple of 16; no autocast or autocast to bfloat16. The block has no
/// dropout; the caller checks that none is active.
bool has_fused_block(const at::Tensor& x, const BlockWeights& weights, const BlockOptions& options);

/// Computes the block's output (B, T, C) float32. Matrix products are at::mm and at::addmm. Under autocast the products
/// and the tensors between them are bfloat16; the residual stream stays float32. Nine tensors are kept for backward: 16
/// to 18 C values per position if F is 4C. Backward computes only the required gradients and can run repeatedly while
/// the graph is kept. No second derivative: c10::NotImplementedError with create_graph.
at::Tensor fused_block(const at::Tensor& x, const BlockWeights& weights, const AttentionMask& mask,
                       const BlockOptions& options);

}  // namespace trainkit::detail
