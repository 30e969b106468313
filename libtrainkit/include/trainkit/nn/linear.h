#pragma once
/// Linear layers that can carry a low-rank adapter (nn/lora.h).

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace trainkit {

/// What Linear and Conv1D share: a weight, perhaps a bias, perhaps a low-rank adapter.
class AdaptableImpl : public torch::nn::Module {
 public:
  /// (..., in_features) to (..., out_features). With an adapter that is not merged, plus
  /// scaling * B(A(dropout(x))).
  at::Tensor forward(const at::Tensor& x);

  int64_t in_features() const { return weight.size(weight_is_transposed_ ? 0 : 1); }
  int64_t out_features() const { return weight.size(weight_is_transposed_ ? 1 : 0); }

  /// Adds "lora_A.weight" (rank, in_features), random as torch.nn.Linear's, and "lora_B.weight" (out_features, rank),
  /// zero: the layer's output does not change. On the weight's device, of its dtype. Throws if there is an adapter.
  void add_adapter(int64_t rank, double scaling, double dropout = 0.0);
  /// Takes them away; a merged weight stays merged.
  void remove_adapter();
  /// Adds scaling * B A to the weight, so that forward costs what it cost without an adapter. Keeps the weight from
  /// before. Nothing happens if it is merged already, or without an adapter.
  void merge_adapter();
  /// Puts the weight from before back, bit for bit.
  void unmerge_adapter();

  bool has_adapter() const { return lora_a_.defined(); }
  bool is_merged() const { return merged_; }
  /// Whether the weight is (in_features, out_features).
  bool weight_is_transposed() const { return weight_is_transposed_; }

  at::Tensor weight;
  at::Tensor bias;  // undefined without

 protected:
  AdaptableImpl(int64_t in_features, int64_t out_features, bool with_bias, bool weight_is_transposed);

 private:
  bool weight_is_transposed_;
  bool merged_ = false;
  double scaling_ = 0, dropout_ = 0;
  at::Tensor lora_a_, lora_b_;
  at::Tensor weight_before_;  // while merged
};

/// x W^T + b, with the parameters, shapes and initial values of torch::nn::Linear.
class LinearImpl : public AdaptableImpl {
 public:
  LinearImpl(int64_t in_features, int64_t out_features, bool bias = true);
};
TORCH_MODULE(Linear);

/// x W + b, the linear layer of GPT-2's files: the weight is (in_features, out_features). Initialised normal(0, 0.02),
/// the bias 0. Source: transformers.pytorch_utils.Conv1D (5.23), whose argument order is the other way round.
class Conv1DImpl : public AdaptableImpl {
 public:
  Conv1DImpl(int64_t in_features, int64_t out_features);
};
TORCH_MODULE(Conv1D);

}  // namespace trainkit
