#pragma once
/// Computes the loss of Bayesian personalised ranking (BPR): a chosen item should rank above one that was not chosen.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trainkit::rec {

/// Reuses the memory of the embedding tables' gradients from step to step. The gradients have megabytes; memory that
/// the system must map again page by page would cost as much as the step. A block that a tensor still refers to is not
/// reused. Not thread-safe.
class GradientBuffers {
 public:
  /// Returns an uninitialised contiguous CPU tensor with the shape and dtype of `like`.
  at::Tensor take(const at::Tensor& like);

 private:
  std::vector<std::shared_ptr<std::vector<char>>> blocks_;
};

/// Returns the scalar mean over the rows of -log sigmoid(positive score - negative score). A score is the inner product
/// of a user's and an item's vector.
/// Source: Rendle et al. 2009, "BPR: Bayesian personalized ranking from implicit feedback", UAI.
at::Tensor bpr_loss(const at::Tensor& positive_scores, const at::Tensor& negative_scores);

/// Returns the same loss for rows of embedding tables: user_table (U, D), item_table (I, D), the rest (N) int64.
/// Differentiable once in the tables. Gradients are dense, as Adam needs them: unused rows are zero. With `sparse` they
/// are sparse, for SparseAdam, with the same values: backward then costs what the batch has rows.
///
/// On the CPU with contiguous float32 tables, forward and backward are one fused autograd node, whose result does not
/// depend on the number of threads (Note [BPR backward] in bpr.cpp). Its dense gradients use the memory of `buffers`,
/// which must outlive the backward pass. Otherwise LibTorch's operations compute the loss. Throws c10::IndexError if an
/// index is out of range.
at::Tensor bpr_loss(const at::Tensor& user_table, const at::Tensor& item_table, const at::Tensor& users,
                    const at::Tensor& positives, const at::Tensor& negatives, GradientBuffers& buffers,
                    bool sparse = false);

}  // namespace trainkit::rec
