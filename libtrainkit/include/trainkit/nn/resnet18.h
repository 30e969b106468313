#pragma once
/// ResNet18 with torchvision's layers and names.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "trainkit/distributed/sync_batch_norm.h"

namespace trainkit {

struct ResNet18Options {
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
  /// Use batch-normalisation statistics over the rows of all replicas; synchronize_batch_norm(model) changes it later.
  bool sync_batch_norm = false;
};

/// Maps images (N, in_channels, H, W), H and W at least 32, to class scores (N, num_classes).
///
///   ResNet18 model(ResNet18Options{.num_classes = 7});
///   at::Tensor loss = at::cross_entropy_loss(model->forward(images), labels);
///
/// Parameters and buffers have torchvision's names and shapes ("layer2.0.downsample.1.running_var"), so its state_dict
/// can be loaded. Initialisation as in torchvision: convolutions normal with variance 2 / fan_out, BatchNorm 1 and 0,
/// the linear layer as torch.nn.Linear. Throws c10::ValueError if num_classes or in_channels is not positive. Source:
/// He et al. 2015, arXiv 1512.03385; torchvision.models.resnet18 (0.26).
class ResNet18Impl : public torch::nn::Module {
 public:
  explicit ResNet18Impl(const ResNet18Options& options = {});

  at::Tensor forward(const at::Tensor& images) { return fc_->forward(features(images)); }
  /// Returns the input of the last layer: (N, 512).
  at::Tensor features(const at::Tensor& images);

  const ResNet18Options& options() const { return options_; }

 private:
  torch::nn::Sequential make_layer(int64_t in_channels, int64_t out_channels, int64_t stride) const;

  ResNet18Options options_;
  torch::nn::Conv2d conv1_{nullptr};
  SyncBatchNorm bn1_{nullptr};
  torch::nn::Sequential layer1_{nullptr}, layer2_{nullptr}, layer3_{nullptr}, layer4_{nullptr};
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(ResNet18);

}  // namespace trainkit
