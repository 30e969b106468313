#pragma once
/// Cross-entropy loss of classifiers and language models.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trainkit {

/// Computes the mean of -log softmax(logits)[target] over the rows whose target is not `ignore_index`. Equivalent to
/// at::cross_entropy_loss, as one autograd node that reads the logits once.
///
/// logits: (N, C), floating point; target: (N), int64, in 0..C-1 or `ignore_index`. Returns a scalar of the logits'
/// dtype; NaN if every target is ignored. Throws c10::IndexError for a target out of range; on CUDA this is a device
/// error that a later call reports, as in LibTorch. Under autocast the computation and the result are float32.
///
/// Two fast paths exist, both for contiguous logits. On the CPU in float32, one (N, C) tensor is kept for backward,
/// where LibTorch keeps one and allocates a second one in backward. On CUDA in float32, bfloat16 and float16, the
/// logits and one number per row are kept, and backward computes the gradient from them: no tensor of probabilities,
/// and no float32 copy under autocast. Neither has a second derivative; backward with create_graph throws. Other inputs
/// use at::cross_entropy_loss. Values agree with it within rounding (1e-6 relative in float32). Results are bitwise
/// equal for any number of CPU threads, and on CUDA between runs. Does not synchronise a device.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index = -100);

}  // namespace trainkit
