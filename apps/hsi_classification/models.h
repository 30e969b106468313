#pragma once
/// Networks of the trainer. Input: patches (N, p, p, bands) float32 with odd p, as gather_patches makes them. Output:
/// class scores (N, classes).
///
/// Layer tables below: kernel sizes are rows x columns x bands, K the number of kernels. Batch normalisation is
/// SyncBatchNorm, so that N replicas train like one process on all rows.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainkit/distributed/sync_batch_norm.h"

namespace trainkit::hsi {

class HsiModel : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  /// Maps (N, p, p, bands) to (N, classes).
  virtual at::Tensor forward(const at::Tensor& patches) = 0;
};

struct HsiModelOptions {
  /// mlp, cnn2d, cnn3d, hybridsn or ssrn.
  std::string model = "cnn2d";
  int64_t bands = 200;
  int64_t patch_size = 11;
  int64_t num_classes = 16;
  /// Dropout in the fully connected layers of mlp and hybridsn.
  double dropout = 0.4;
};

/// Default settings of a model.
struct HsiModelDefaults {
  int64_t patch_size;
  /// Smallest patch for which every layer has an output.
  int64_t min_patch_size;
  /// Smallest number of bands for which every layer has an output.
  int64_t min_bands;
  /// Principal components; 0 means all bands.
  int64_t pca;
};
/// Throws c10::ValueError for an unknown name.
HsiModelDefaults model_defaults(const std::string& model);
/// Returns the names that create_model accepts.
const std::vector<std::string>& model_names();

/// Creates a model with weights from LibTorch's default generator. Throws c10::ValueError if a size is too small.
std::shared_ptr<HsiModel> create_model(const HsiModelOptions& options);

/// Spectral multilayer perceptron on the central pixel of the patch, without neighbours. Linear 256, ReLU, dropout;
/// Linear 128, ReLU, dropout; Linear classes. The baseline of Paoletti et al. 2019 ("Deep learning classifiers for
/// hyperspectral imaging: a review", ISPRS J. 158), which has one hidden layer.
class SpectralMlp final : public HsiModel {
 public:
  explicit SpectralMlp(const HsiModelOptions& options);
  at::Tensor forward(const at::Tensor& patches) override;

 private:
  torch::nn::Linear fc1_{nullptr}, fc2_{nullptr}, out_{nullptr};
  double dropout_;
};

/// Two-dimensional network with bands as channels: convolution 3x3 K 64, BN, ReLU; convolution 3x3 K 128, BN, ReLU;
/// mean over the patch; Linear classes. No padding, so p shrinks by 4. After Makantasis et al. 2015 ("Deep supervised
/// learning for hyperspectral data classification through convolutional neural networks", IGARSS), with BN and the mean
/// instead of their two fully connected layers.
class Cnn2d final : public HsiModel {
 public:
  explicit Cnn2d(const HsiModelOptions& options);
  at::Tensor forward(const at::Tensor& patches) override;

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  SyncBatchNorm bn1_{nullptr}, bn2_{nullptr};
  torch::nn::Linear out_{nullptr};
};

/// Three-dimensional network: 3x3x7 K 8, ReLU; 3x3x5 K 16, stride 2 over bands, ReLU; 3x3x3 K 32, stride 2 over bands,
/// ReLU; mean over all positions; Linear classes. After Li, Zhang and Shen 2017 ("Spectral-spatial classification of
/// hyperspectral imagery with 3D convolutional neural network", Remote Sensing 9(1), 67: two such layers and a fully
/// connected one).
class Cnn3d final : public HsiModel {
 public:
  explicit Cnn3d(const HsiModelOptions& options);
  at::Tensor forward(const at::Tensor& patches) override;

 private:
  torch::nn::Conv3d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr};
  torch::nn::Linear out_{nullptr};
};

/// HybridSN: 3x3x7 K 8, 3x3x5 K 16, 3x3x3 K 32, each with ReLU; bands and kernels together become the channels of a
/// convolution 3x3 K 64 with ReLU; Linear 256, ReLU, dropout 0.4; Linear 128, ReLU, dropout 0.4; Linear classes. For
/// 25x25 patches of 30 principal components and 16 classes it has 5,122,176 parameters, as in the paper.
/// Source: Roy et al. 2020, "HybridSN: exploring 3-D-2-D CNN feature hierarchy for hyperspectral image classification",
/// IEEE GRSL 17(2), table I.
class HybridSn final : public HsiModel {
 public:
  explicit HybridSn(const HsiModelOptions& options);
  at::Tensor forward(const at::Tensor& patches) override;

 private:
  torch::nn::Conv3d conv1_{nullptr}, conv2_{nullptr}, conv3_{nullptr};
  torch::nn::Conv2d conv4_{nullptr};
  torch::nn::Linear fc1_{nullptr}, fc2_{nullptr}, out_{nullptr};
  double dropout_;
};

/// Residual block: two convolutions of one shape, each with BN; ReLU after the first and after the sum.
class SsrnBlock final : public torch::nn::Module {
 public:
  SsrnBlock(int64_t channels, std::array<int64_t, 3> kernel);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv3d conv1_{nullptr}, conv2_{nullptr};
  SyncBatchNorm bn1_{nullptr}, bn2_{nullptr};
};

/// Spectral-spatial residual network: 1x1x7 K 24, stride 2 over bands, BN, ReLU; two residual blocks of 1x1x7 K 24;
/// 1x1x(all bands left) K 128, BN, ReLU; 3x3x128 K 24, BN, ReLU; two residual blocks of 3x3x1 K 24; mean over the
/// patch; Linear classes. Source: Zhong et al. 2018, "Spectral-spatial residual network for hyperspectral image
/// classification: a 3-D deep learning framework", IEEE TGRS 56(2), fig. 4 and table II (7x7 patches of 200 bands).
class Ssrn final : public HsiModel {
 public:
  explicit Ssrn(const HsiModelOptions& options);
  at::Tensor forward(const at::Tensor& patches) override;

 private:
  torch::nn::Conv3d spectral_in_{nullptr}, spectral_out_{nullptr}, spatial_in_{nullptr};
  SyncBatchNorm spectral_in_bn_{nullptr}, spectral_out_bn_{nullptr}, spatial_in_bn_{nullptr};
  std::shared_ptr<SsrnBlock> spectral1_, spectral2_, spatial1_, spatial2_;
  torch::nn::Linear out_{nullptr};
};

}  // namespace trainkit::hsi
