#pragma once
/// The loss of classifiers and language models.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trainkit {

/// Mean of -log softmax(logits)[target] over the rows whose target is not `ignore_index`: at::cross_entropy_loss as one
/// autograd node that passes over the logits once, its gradient being made with the loss.
///
/// logits (N, C), floating point; target (N), int64, in 0..C-1 or `ignore_index`. A scalar of the logits' dtype; NaN if
/// no row counts. Throws c10::IndexError for a target out of range; on CUDA that is an error of the device, which a
/// later call reports, as it is with LibTorch. Under autocast it is computed in float32, and is float32.
///
/// There are two fast paths, both for contiguous logits. On the CPU in float32 it keeps one (N, C) tensor for backward
/// (LibTorch: one, and a second one in backward). On CUDA in float32, bfloat16 and float16 it keeps the logits as they
/// are and one number a row, and makes their gradient in backward: of probabilities there is no tensor, nor under
/// autocast a copy in float32. Neither has a second derivative: backward with create_graph says so. Elsewhere this is
/// at::cross_entropy_loss. Values agree with it within rounding (1e-6 relative in float32), on the CPU for any number
/// of threads with the same bits, and on CUDA with the same ones on every run. Does not synchronise a device.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index = -100);

}  // namespace trainkit
