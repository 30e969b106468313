#pragma once
/// Rows of a batch that consist of several documents.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>

#include <utility>

namespace trainkit {

/// Documents in the rows of a batch.
struct PackedDocuments {
  explicit PackedDocuments(at::Tensor positions_) : positions(std::move(positions_)) {}

  /// Returns (B, 1, T, T) bool: whether the query's row may attend to the key's column. Made once, and only where
  /// attention needs it.
  const at::Tensor& allowed() const {
    if (!allowed_.defined()) {
      const at::Tensor place = at::arange(positions.size(1), positions.options());
      const at::Tensor first = (place - positions).unsqueeze(-1);  // (B, T, 1): first key of the query's document
      allowed_ = (place >= first).logical_and_(place <= place.unsqueeze(-1)).unsqueeze_(1);
    }
    return allowed_;
  }

  /// (B, T) int64; see TransformerImpl::forward.
  at::Tensor positions;

 private:
  mutable at::Tensor allowed_;
};

}  // namespace trainkit
