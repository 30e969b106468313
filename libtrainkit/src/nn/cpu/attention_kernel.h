#pragma once
/// Causal self-attention on the CPU, forward and backward.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trainkit::detail {

/// Parameters of attention over (B, T, 3 * heads * width): queries, keys and values of all heads.
struct CausalAttention {
  int64_t n_heads;
  /// Factor of the scores.
  double scale;
};

/// Restricts what a position attends to, in addition to itself and earlier positions. Undefined members restrict
/// nothing.
struct AttentionMask {
  /// (B, T) bool: false at keys that no position attends to.
  at::Tensor key_mask = {};
  /// (B, T) int64: position of each token in its document, 0 at the first one. A token attends to its own document
  /// only.
  at::Tensor positions = {};
};

/// Returns whether causal_attention supports sequences of `time` positions and `width` values: head widths that are
/// multiples of 16 and at most 256, sequences of at most 4096 positions.
bool has_causal_attention(int64_t time, int64_t width, int64_t n_heads);

struct Attended {
  at::Tensor mixed;      // (B, T, C), dtype of qkv
  at::Tensor logsumexp;  // (B, heads, T) float32, of the scores; backward recomputes the weights from it
};

/// Computes softmax(scale q k^T) v for each head of `qkv`, (B, T, 3C) contiguous float32 or bfloat16. Each position
/// attends to itself and to earlier positions, as far as `mask` allows. A position without visible keys gets zeros.
/// Sums are float32. One thread computes a head, so that the result does not depend on the number of threads. Not
/// differentiable by autograd. Source: Dao et al., arXiv 2205.14135, without its running softmax: a row of scores fits
/// into the cache.
Attended causal_attention(const at::Tensor& qkv, const AttentionMask& mask, const CausalAttention& attention);

/// Returns the gradient of `qkv`, with its dtype and shape. @param d_mixed gradient of `attended.mixed`, contiguous,
/// same dtype.
at::Tensor causal_attention_backward(const at::Tensor& d_mixed, const at::Tensor& qkv, const AttentionMask& mask,
                                     const Attended& attended, const CausalAttention& attention);

}  // namespace trainkit::detail
