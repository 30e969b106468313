#pragma once
// The rows of a table that have a sparse gradient.

#include <ATen/TensorIndexing.h>

#include <vector>

namespace trainkit::detail {

/// Returns the index of a coalesced gradient's values in its table, for Tensor::index().
inline std::vector<at::indexing::TensorIndex> rows_of(const at::Tensor& gradient) {
  std::vector<at::indexing::TensorIndex> places;
  for (const at::Tensor& indices : gradient._indices().unbind(0)) places.emplace_back(indices);
  return places;
}

}  // namespace trainkit::detail
