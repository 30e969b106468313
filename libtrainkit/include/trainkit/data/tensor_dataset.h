#pragma once
/// Dataset of tensors in memory.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "trainkit/data/dataset.h"

namespace trainkit {

/// Returns row i of each tensor as row i.
///
///   auto dataset = std::make_shared<TensorDataset>(TensorDataset({{"x", images}, {"y", labels}}));
///
/// Batches are gathered with software prefetch, at memory bandwidth.
/// Source: torch.utils.data.TensorDataset.
class TensorDataset final : public Dataset {
 public:
  /// Takes tensors (N, shape...) on the CPU. Contiguous tensors are shared, others are copied. Throws c10::ValueError
  /// if the list is empty, the tensors differ in N, one is not on the CPU, or two have the same name.
  explicit TensorDataset(std::vector<std::pair<std::string, at::Tensor>> tensors);

  int64_t size() const override { return size_; }
  const std::vector<FieldSpec>& fields() const override { return fields_; }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override;
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override;
  void prefetch(int64_t index) const override;

 private:
  struct Column {
    const std::byte* data;
    int64_t row_bytes;
  };
  std::vector<at::Tensor> tensors_;
  std::vector<FieldSpec> fields_;
  std::vector<Column> columns_;
  int64_t size_ = 0;
};

}  // namespace trainkit
