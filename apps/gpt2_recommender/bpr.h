#pragma once
/// Bayesian personalised ranking: the chosen item above the one that was not.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trainkit::rec {

/// Memory for the gradients of embedding tables, kept from step to step: tables of megabytes that the system hands out
/// anew, page by page, would cost as much as the step. A tensor of it that is still referred to is left alone and
/// another one made. One thread at a time.
class GradientBuffers {
 public:
  /// Uninitialised, contiguous, of `like`'s shape and dtype, on the CPU.
  at::Tensor take(const at::Tensor& like);

 private:
  std::vector<std::shared_ptr<std::vector<char>>> blocks_;
};

/// Mean over the rows of -log sigmoid(score of the positive - score of the negative), scalar, where a score is the
/// inner product of a user's and an item's vector.
/// Source: Rendle et al. 2009, "BPR: Bayesian personalized ranking from implicit feedback", UAI.
at::Tensor bpr_loss(const at::Tensor& positive_scores, const at::Tensor& negative_scores);

/// The same for rows of embedding tables: user_table (U, D), item_table (I, D), the rest (N) int64. Differentiable in
/// the tables, once; their gradients are dense, as Adam needs them: rows that no triplet names are zero.
///
/// On the CPU with contiguous float32 tables forward and backward are one autograd node: each row of a gradient is
/// written once, by one thread and in the order of the triplets, so that the result does not depend on the number of
/// threads. The gradients lie in `buffers`, which must outlive the backward pass. Elsewhere LibTorch's operations do
/// the same. Throws c10::IndexError for an index out of range.
at::Tensor bpr_loss(const at::Tensor& user_table, const at::Tensor& item_table, const at::Tensor& users,
                    const at::Tensor& positives, const at::Tensor& negatives, GradientBuffers& buffers);

}  // namespace trainkit::rec
