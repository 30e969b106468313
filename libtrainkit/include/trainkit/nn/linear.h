#pragma once
/// Linear layers that can carry a low-rank adapter (nn/lora.h).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace trainkit {

/// Base of Linear and Conv1D: a weight, an optional bias and an optional low-rank adapter. Itself a linear layer of an
/// ExportedModel.
class AdaptableImpl : public torch::nn::Module {
 public:
  /// Registers the weight of an exported layer, whose graph computes the products. Its adapter has no dropout.
  AdaptableImpl(at::Tensor weight, bool weight_is_transposed);

  /// Maps (..., in_features) to (..., out_features). An unmerged adapter adds scaling * B(A(dropout(x))).
  at::Tensor forward(const at::Tensor& x);

  int64_t in_features() const { return weight.size(weight_is_transposed_ ? 0 : 1); }
  int64_t out_features() const { return weight.size(weight_is_transposed_ ? 1 : 0); }

  /// Adds "lora_A.weight" (rank, in_features), initialised as torch.nn.Linear, and "lora_B.weight" (out_features,
  /// rank), zero, so that the output does not change. Both have the weight's device and dtype. Throws if the layer has
  /// an adapter.
  void add_adapter(int64_t rank, double scaling, double dropout = 0.0);
  /// Removes the adapter. A merged weight stays merged.
  void remove_adapter();
  /// Adds scaling * B A to the weight, so that forward costs as much as without an adapter. Keeps a copy of the
  /// original weight. Does nothing if the adapter is merged or absent.
  void merge_adapter();
  /// Restores the original weight bit for bit.
  void unmerge_adapter();

  bool has_adapter() const { return lora_a_.defined(); }
  bool is_merged() const { return merged_; }
  /// Returns whether the weight is (in_features, out_features).
  bool weight_is_transposed() const { return weight_is_transposed_; }

  at::Tensor weight;
  at::Tensor bias;  // undefined without a bias

 protected:
  AdaptableImpl(int64_t in_features, int64_t out_features, bool with_bias, bool weight_is_transposed);

 private:
  friend class ExportedModelImpl;
  /// Returns the weight with an unmerged adapter added, differentiable in all of them.
  at::Tensor adapted_weight() const;
  /// Copies the adapter of `other`, if it has one, to the weight's device.
  void copy_adapter(const AdaptableImpl& other);
  void register_adapter(const at::Tensor& a, const at::Tensor& b);

  bool weight_is_transposed_;
  bool computes_ = true;  // forward() is called
  bool merged_ = false;
  double scaling_ = 0, dropout_ = 0;
  at::Tensor lora_a_, lora_b_;
  at::Tensor weight_before_;  // original weight while merged
};

/// Computes x W^T + b, with the parameters, shapes and initial values of torch::nn::Linear.
class LinearImpl : public AdaptableImpl {
 public:
  LinearImpl(int64_t in_features, int64_t out_features, bool bias = true);
};
TORCH_MODULE(Linear);

/// Computes x W + b, the linear layer of GPT-2's files: the weight is (in_features, out_features). Initialised
/// normal(0, 0.02), bias 0. Source: transformers.pytorch_utils.Conv1D (5.23), whose argument order is reversed.
class Conv1DImpl : public AdaptableImpl {
 public:
  Conv1DImpl(int64_t in_features, int64_t out_features);
};
TORCH_MODULE(Conv1D);

}  // namespace trainkit
