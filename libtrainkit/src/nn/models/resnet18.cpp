#include "trainkit/nn/resnet18.h"

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/nn/init.h>

namespace trainkit {

/// Two 3x3 convolutions with a shortcut: the identity, or a 1x1 convolution if the shape changes.
class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(int64_t in_channels, int64_t out_channels, int64_t stride, bool sync_batch_norm);
  /// Maps (N, in, H, W) to (N, out, H / stride, W / stride).
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d conv1_{nullptr};
  SyncBatchNorm bn1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  SyncBatchNorm bn2_{nullptr};
  torch::nn::Sequential downsample_{nullptr};  // null if the shape does not change
};
TORCH_MODULE(BasicBlock);

namespace {

torch::nn::Conv2d conv(int64_t in_channels, int64_t out_channels, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in_channels, out_channels, kernel).stride(stride).padding(kernel / 2).bias(false));
}

SyncBatchNorm norm(int64_t channels, bool synchronize) {
  return SyncBatchNorm(SyncBatchNormOptions{.num_features = channels, .synchronize = synchronize});
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(int64_t in_channels, int64_t out_channels, int64_t stride, bool sync_batch_norm)
    : conv1_(register_module("conv1", conv(in_channels, out_channels, 3, stride))),
      bn1_(register_module("bn1", norm(out_channels, sync_batch_norm))),
      conv2_(register_module("conv2", conv(out_channels, out_channels, 3, 1))),
      bn2_(register_module("bn2", norm(out_channels, sync_batch_norm))) {
  if (stride == 1 && in_channels == out_channels) return;
  downsample_ = register_module("downsample", torch::nn::Sequential(conv(in_channels, out_channels, 1, stride),
                                                                    norm(out_channels, sync_batch_norm)));
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor out = conv2_(bn1_->forward_relu(conv1_(x)));
  return bn2_->forward_relu(out, downsample_ ? downsample_->forward(x) : x);
}

ResNet18Impl::ResNet18Impl(const ResNet18Options& options) : options_(options) {
  TORCH_CHECK_VALUE(options.num_classes > 0 && options.in_channels > 0, "num_classes and in_channels must be > 0, got ",
                    options.num_classes, " and ", options.in_channels);
  conv1_ = register_module("conv1", conv(options.in_channels, 64, 7, 2));
  bn1_ = register_module("bn1", norm(64, options.sync_batch_norm));
  layer1_ = register_module("layer1", make_layer(64, 64, 1));
  layer2_ = register_module("layer2", make_layer(64, 128, 2));
  layer3_ = register_module("layer3", make_layer(128, 256, 2));
  layer4_ = register_module("layer4", make_layer(256, 512, 2));
  fc_ = register_module("fc", torch::nn::Linear(512, options.num_classes));
  for (const auto& part : modules(/*include_self=*/false)) {
    if (auto* layer = part->as<torch::nn::Conv2dImpl>()) {
      torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }
}

torch::nn::Sequential ResNet18Impl::make_layer(int64_t in_channels, int64_t out_channels, int64_t stride) const {
  return torch::nn::Sequential(BasicBlock(in_channels, out_channels, stride, options_.sync_batch_norm),
                               BasicBlock(out_channels, out_channels, 1, options_.sync_batch_norm));
}

at::Tensor ResNet18Impl::features(const at::Tensor& images) {
  at::Tensor x = at::max_pool2d(bn1_->forward_relu(conv1_(images)), {3, 3}, {2, 2}, {1, 1});
  x = layer4_->forward(layer3_->forward(layer2_->forward(layer1_->forward(x))));
  return x.mean({2, 3});
}

}  // namespace trainkit
