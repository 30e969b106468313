#include "trainkit/data/tensor_dataset.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "data/datasets/copy_rows.h"

namespace trainkit {

TensorDataset::TensorDataset(std::vector<std::pair<std::string, at::Tensor>> tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "TensorDataset: expected at least one tensor");
  for (auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(tensor.defined() && tensor.dim() >= 1, "TensorDataset: ", name,
                      " must have at least one dimension");
    TORCH_CHECK_VALUE(tensor.is_cpu(), "TensorDataset: ", name, " must be on the CPU, got ", tensor.device());
    if (tensors_.empty()) size_ = tensor.size(0);
    TORCH_CHECK_VALUE(tensor.size(0) == size_, "TensorDataset: ", name, " must have ", size_, " rows, got ",
                      tensor.size(0));
    const auto is_same = [&name = name](const FieldSpec& field) { return field.name == name; };
    TORCH_CHECK_VALUE(std::none_of(fields_.begin(), fields_.end(), is_same), "TensorDataset: duplicate tensor name ",
                      name);
    fields_.push_back({name, tensor.scalar_type(), tensor.sizes().slice(1).vec()});
    tensors_.push_back(tensor.detach().resolve_conj().resolve_neg().contiguous());
    columns_.push_back({static_cast<const std::byte*>(tensors_.back().const_data_ptr()), fields_.back().row_bytes()});
  }
}

void TensorDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  for (size_t i = 0; i < columns_.size(); ++i) {
    const auto [data, bytes] = columns_[i];
    std::memcpy(out.row(i, at), data + key.index * bytes, bytes);
  }
}

void TensorDataset::get_batch(std::span<const RowKey> keys, const BatchView& out) const {
  for (size_t i = 0; i < columns_.size(); ++i) copy_rows(columns_[i].data, keys, out, i);
}

void TensorDataset::prefetch(int64_t index) const {
  for (const auto [data, bytes] : columns_) prefetch_bytes(data + index * bytes, bytes);
}

}  // namespace trainkit
