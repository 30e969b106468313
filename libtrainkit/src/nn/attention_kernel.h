#pragma once
/// Causal self-attention on the CPU, forward and backward.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trainkit::detail {

/// Queries, keys and values of all heads side by side: (B, T, 3 * heads * width).
struct CausalAttention {
  int64_t n_heads;
  /// What scores are multiplied by.
  double scale;
};

/// Whether causal_attention takes sequences of `time` positions and `width` values: heads of a multiple of 16 values
/// and at most 256, sequences of at most 4096 positions.
bool has_causal_attention(int64_t time, int64_t width, int64_t n_heads);

struct Attended {
  at::Tensor mixed;      // (B, T, C), the kind of qkv
  at::Tensor logsumexp;  // (B, heads, T) float32, of the scores: backward computes the weights again from it
};

/// softmax(scale q k^T) v for each head of `qkv`, (B, T, 3C) contiguous float32 or bfloat16, each position seeing
/// itself and what is before it, without what `key_mask` (B, T) bool hides where it is false (undefined: nothing). A
/// position that sees nothing gets zeros. Sums are of float32; one head is the work of one thread, so that its result
/// does not depend on their number. No gradient of its own. Source: Dao et al., arXiv 2205.14135, without its running
/// softmax: a row of scores fits into the cache.
Attended causal_attention(const at::Tensor& qkv, const at::Tensor& key_mask, const CausalAttention& attention);

/// The gradient of `qkv`, of its kind and shape. @param d_mixed that of `attended.mixed`, contiguous, of its kind.
at::Tensor causal_attention_backward(const at::Tensor& d_mixed, const at::Tensor& qkv, const at::Tensor& key_mask,
                                     const Attended& attended, const CausalAttention& attention);

}  // namespace trainkit::detail
