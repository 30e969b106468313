#pragma once
// The loss of rows of logits on the CPU, shared by cross_entropy.cpp and linear_cross_entropy.cpp.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trainkit::detail {

/// Returns whether `target` is a vector of `rows` int64 on the CPU.
bool is_row_target(const at::Tensor& target, int64_t rows);

/// Counts the targets other than ignore_index. Throws c10::IndexError for a target out of range.
int64_t count_targets(const int64_t* target, int64_t rows, int64_t classes, int64_t ignore_index);

/// Computes -log softmax(logits)[target] of each row, 0 for ignored ones, and, with `gradient`, the gradient of their
/// sum times `scale`. `gradient` may be `logits`. Uses LibTorch's threads; the bits do not depend on their number.
void cross_entropy_rows(const float* logits, const int64_t* target, int64_t rows, int64_t classes, int64_t ignore_index,
                        float* losses, float* gradient, float scale);

/// Returns `gradient`, which forward made, times `factor`, a scalar: in place unless the graph is kept. Undefined stays
/// undefined. Called in backward.
at::Tensor times_factor(at::Tensor& gradient, const at::Tensor& factor);

/// Returns `gradient`, which forward made, times the incoming gradient: itself if that is 1, and in place unless the
/// graph is kept. Undefined stays undefined. Called in backward.
at::Tensor times_incoming(at::Tensor& gradient, const at::Tensor& incoming);

}  // namespace trainkit::detail
