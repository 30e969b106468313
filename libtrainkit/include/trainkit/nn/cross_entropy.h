#pragma once
/// The loss of classifiers and language models.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trainkit {

/// Mean of -log softmax(logits)[target] over the rows whose target is not `ignore_index`: at::cross_entropy_loss as one
/// autograd node that passes over the logits once, its gradient being made with the loss.
///
/// logits (N, C), floating point; target (N), int64, in 0..C-1 or `ignore_index`. A scalar of the logits' dtype; NaN if
/// no row counts. Throws c10::IndexError for a target out of range. Under autocast it is computed in float32.
///
/// The fast path is for contiguous float32 logits on the CPU and keeps one (N, C) tensor for backward (LibTorch: one,
/// and a second one in backward). It has no second derivative: backward with create_graph says so. Elsewhere this is
/// at::cross_entropy_loss. Values agree with it within rounding (1e-6 relative), for any number of threads with the
/// same bits. Does not synchronise a device.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index = -100);

}  // namespace trainkit
