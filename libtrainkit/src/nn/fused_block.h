#pragma once
/// A pre-norm Transformer block on the CPU as one autograd node: x + attention(norm(x)), then x + mlp(norm(x)).

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/block_kernels.h"

namespace trainkit::detail {

/// Float32. Biases may be undefined.
struct BlockWeights {
  at::Tensor ln_1, ln_1_bias;
  at::Tensor qkv, qkv_bias;    // C to 3C: queries, keys and values at once
  at::Tensor proj, proj_bias;  // C to C, of attention
  at::Tensor ln_2, ln_2_bias;
  at::Tensor fc, fc_bias;    // C to F
  at::Tensor out, out_bias;  // F to C
};

/// The weights of a block's modules, whose parameters are named `weight` and `bias`.
template <typename Norm, typename Projection>
BlockWeights block_weights(const Norm& ln_1, const Projection& qkv, const Projection& proj, const Norm& ln_2,
                           const Projection& fc, const Projection& out) {
  return {ln_1->weight, ln_1->bias, qkv->weight, qkv->bias, proj->weight, proj->bias,
          ln_2->weight, ln_2->bias, fc->weight,  fc->bias,  out->weight,  out->bias};
}

struct BlockOptions {
  int64_t n_heads;
  /// What attention's scores are multiplied by.
  double scale;
  double eps;
  Activation activation;
  /// Whether matrices are (in, out), as of GPT-2's Conv1D, and not (out, in).
  bool weights_are_transposed;
};

/// Whether fused_block takes these: all on the CPU in float32 and contiguous, x (B, T, C), heads that
/// attention_kernel.h takes, F a multiple of 16, no autocast or one to bfloat16. Dropout is the caller's to look at:
/// there is none.
bool has_fused_block(const at::Tensor& x, const BlockWeights& weights, const BlockOptions& options);

/// The block's output (B, T, C) float32. @param key_mask (B, T) bool, false for what no position may look at, or
/// undefined. Matrix products are at::mm and at::addmm; under autocast they and what lies between them are bfloat16,
/// and the residual stream stays float32. Between forward and backward nine tensors live, of 16 to 18 C values for each
/// position if F is 4C. Backward computes only the gradients that are wanted, runs as often as the graph is kept, and
/// has none of its own: c10::NotImplementedError with create_graph.
at::Tensor fused_block(const at::Tensor& x, const BlockWeights& weights, const at::Tensor& key_mask,
                       const BlockOptions& options);

}  // namespace trainkit::detail
