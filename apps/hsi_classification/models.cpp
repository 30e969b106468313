#include "hsi_classification/models.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <type_traits>
#include <variant>

#include "trainkit/nn/functional.h"

namespace trainkit::hsi {
namespace {

using torch::nn::Conv2dOptions;
using torch::nn::Conv3dOptions;
using Size3 = std::array<int64_t, 3>;

/// Views (N, p, p, bands) as images with `bands` channels, in channels_last format.
at::Tensor as_images(const at::Tensor& patches) { return patches.permute({0, 3, 1, 2}); }

/// Views (N, p, p, bands) as volumes with one channel, (N, 1, p, p, bands), contiguous.
at::Tensor as_volumes(const at::Tensor& patches) { return patches.unsqueeze(1); }

/// Makes a 3-D convolution with a kernel of rows x columns x bands.
torch::nn::Conv3d conv3d(int64_t in, int64_t out, Size3 kernel, Size3 stride = {1, 1, 1}) {
  return torch::nn::Conv3d(Conv3dOptions(in, out, kernel).stride(stride));
}

/// Applies a convolution, and replaces negative results by 0 if `relu`.
template <typename Layer>
at::Tensor convolve(const Layer& layer, const at::Tensor& x, bool relu = false) {
  using Sizes = std::decay_t<decltype(layer->options.stride())>;
  return convolution(x, layer->weight, layer->bias, *layer->options.stride(),
                     *std::get<Sizes>(layer->options.padding()), relu);
}

/// Averages over all positions, (N, C, ...) to (N, C).
at::Tensor mean_of_positions(const at::Tensor& x) { return x.flatten(2).mean(2); }

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = {"mlp", "cnn2d", "cnn3d", "hybridsn", "ssrn"};
  return names;
}

HsiModelDefaults model_defaults(const std::string& model) {
  if (model == "mlp") return {.patch_size = 1, .min_patch_size = 1, .min_bands = 1, .pca = 0};
  if (model == "cnn2d") return {.patch_size = 9, .min_patch_size = 5, .min_bands = 1, .pca = 0};
  if (model == "cnn3d") return {.patch_size = 9, .min_patch_size = 7, .min_bands = 15, .pca = 0};
  if (model == "hybridsn") return {.patch_size = 25, .min_patch_size = 9, .min_bands = 13, .pca = 30};
  if (model == "ssrn") return {.patch_size = 7, .min_patch_size = 3, .min_bands = 7, .pca = 0};
  TORCH_CHECK_VALUE(false, "unknown model '", model, "'");
}

std::shared_ptr<HsiModel> create_model(const HsiModelOptions& options) {
  const HsiModelDefaults least = model_defaults(options.model);
  TORCH_CHECK_VALUE(options.patch_size >= least.min_patch_size && options.patch_size % 2 == 1, options.model,
                    ": patch_size must be odd and >= ", least.min_patch_size, ", got ", options.patch_size);
  TORCH_CHECK_VALUE(options.bands >= least.min_bands, options.model, ": bands must be >= ", least.min_bands, ", got ",
                    options.bands);
  TORCH_CHECK_VALUE(options.num_classes >= 1, "num_classes must be >= 1, got ", options.num_classes);
  if (options.model == "mlp") return std::make_shared<SpectralMlp>(options);
  if (options.model == "cnn2d") return std::make_shared<Cnn2d>(options);
  if (options.model == "cnn3d") return std::make_shared<Cnn3d>(options);
  if (options.model == "hybridsn") return std::make_shared<HybridSn>(options);
  return std::make_shared<Ssrn>(options);
}

SpectralMlp::SpectralMlp(const HsiModelOptions& options) : dropout_(options.dropout) {
  fc1_ = register_module("fc1", torch::nn::Linear(options.bands, 256));
  fc2_ = register_module("fc2", torch::nn::Linear(256, 128));
  out_ = register_module("out", torch::nn::Linear(128, options.num_classes));
}

at::Tensor SpectralMlp::forward(const at::Tensor& patches) {
  const int64_t middle = patches.size(1) / 2;
  const at::Tensor spectra = patches.select(1, middle).select(1, middle);
  const at::Tensor h = at::dropout(fc1_(spectra).relu(), dropout_, is_training());
  return out_(at::dropout(fc2_(h).relu(), dropout_, is_training()));
}

Cnn2d::Cnn2d(const HsiModelOptions& options) {
  conv1_ = register_module("conv1", torch::nn::Conv2d(Conv2dOptions(options.bands, 64, 3)));
  bn1_ = register_module("bn1", SyncBatchNorm(64));
  conv2_ = register_module("conv2", torch::nn::Conv2d(Conv2dOptions(64, 128, 3)));
  bn2_ = register_module("bn2", SyncBatchNorm(128));
  out_ = register_module("out", torch::nn::Linear(128, options.num_classes));
}

at::Tensor Cnn2d::forward(const at::Tensor& patches) {
  at::Tensor x = bn1_->forward_relu(convolve(conv1_, as_images(patches)));
  x = bn2_->forward_relu(convolve(conv2_, x));
  return out_(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

Cnn3d::Cnn3d(const HsiModelOptions& options) {
  conv1_ = register_module("conv1", conv3d(1, 8, {3, 3, 7}));
  conv2_ = register_module("conv2", conv3d(8, 16, {3, 3, 5}, {1, 1, 2}));
  conv3_ = register_module("conv3", conv3d(16, 32, {3, 3, 3}, {1, 1, 2}));
  out_ = register_module("out", torch::nn::Linear(32, options.num_classes));
}

at::Tensor Cnn3d::forward(const at::Tensor& patches) {
  at::Tensor x = convolve(conv1_, as_volumes(patches), /*relu=*/true);
  x = convolve(conv2_, x, /*relu=*/true);
  x = convolve(conv3_, x, /*relu=*/true);
  return out_(mean_of_positions(x));
}

HybridSn::HybridSn(const HsiModelOptions& options) : dropout_(options.dropout) {
  conv1_ = register_module("conv1", conv3d(1, 8, {3, 3, 7}));
  conv2_ = register_module("conv2", conv3d(8, 16, {3, 3, 5}));
  conv3_ = register_module("conv3", conv3d(16, 32, {3, 3, 3}));
  const int64_t bands_left = options.bands - 6 - 4 - 2, side_left = options.patch_size - int64_t{4} * 2;
  conv4_ = register_module("conv4", torch::nn::Conv2d(Conv2dOptions(32 * bands_left, 64, 3)));
  fc1_ = register_module("fc1", torch::nn::Linear(64 * side_left * side_left, 256));
  fc2_ = register_module("fc2", torch::nn::Linear(256, 128));
  out_ = register_module("out", torch::nn::Linear(128, options.num_classes));
}

at::Tensor HybridSn::forward(const at::Tensor& patches) {
  at::Tensor x = convolve(conv1_, as_volumes(patches), /*relu=*/true);
  x = convolve(conv2_, x, /*relu=*/true);
  x = convolve(conv3_, x, /*relu=*/true);        // (N, 32, p - 6, p - 6, bands - 12)
  x = x.permute({0, 1, 4, 2, 3}).flatten(1, 2);  // (N, 32 * (bands - 12), p - 6, p - 6)
  x = convolve(conv4_, x, /*relu=*/true).flatten(1);
  x = at::dropout(fc1_(x).relu(), dropout_, is_training());
  return out_(at::dropout(fc2_(x).relu(), dropout_, is_training()));
}

SsrnBlock::SsrnBlock(int64_t channels, std::array<int64_t, 3> kernel) {
  const Size3 padding = {kernel[0] / 2, kernel[1] / 2, kernel[2] / 2};
  const auto options = Conv3dOptions(channels, channels, kernel).padding(torch::ExpandingArray<3>(padding));
  conv1_ = register_module("conv1", torch::nn::Conv3d(options));
  bn1_ = register_module("bn1", SyncBatchNorm(channels));
  conv2_ = register_module("conv2", torch::nn::Conv3d(options));
  bn2_ = register_module("bn2", SyncBatchNorm(channels));
}

at::Tensor SsrnBlock::forward(const at::Tensor& x) {
  return bn2_->forward_relu(convolve(conv2_, bn1_->forward_relu(convolve(conv1_, x))), x);
}

Ssrn::Ssrn(const HsiModelOptions& options) {
  const int64_t bands_left = (options.bands - 7) / 2 + 1;
  spectral_in_ = register_module("spectral_in", conv3d(1, 24, {1, 1, 7}, {1, 1, 2}));
  spectral_in_bn_ = register_module("spectral_in_bn", SyncBatchNorm(24));
  spectral1_ = register_module("spectral1", std::make_shared<SsrnBlock>(24, Size3{1, 1, 7}));
  spectral2_ = register_module("spectral2", std::make_shared<SsrnBlock>(24, Size3{1, 1, 7}));
  spectral_out_ = register_module("spectral_out", conv3d(24, 128, {1, 1, bands_left}));
  spectral_out_bn_ = register_module("spectral_out_bn", SyncBatchNorm(128));
  spatial_in_ = register_module("spatial_in", conv3d(1, 24, {3, 3, 128}));
  spatial_in_bn_ = register_module("spatial_in_bn", SyncBatchNorm(24));
  spatial1_ = register_module("spatial1", std::make_shared<SsrnBlock>(24, Size3{3, 3, 1}));
  spatial2_ = register_module("spatial2", std::make_shared<SsrnBlock>(24, Size3{3, 3, 1}));
  out_ = register_module("out", torch::nn::Linear(24, options.num_classes));
}

at::Tensor Ssrn::forward(const at::Tensor& patches) {
  at::Tensor x = spectral_in_bn_->forward_relu(convolve(spectral_in_, as_volumes(patches)));
  x = spectral2_->forward(spectral1_->forward(x));
  x = spectral_out_bn_->forward_relu(convolve(spectral_out_, x));
  x = x.permute({0, 4, 2, 3, 1});  // (N, 128, p, p, 1): the kernels become the bands of one channel
  x = spatial_in_bn_->forward_relu(convolve(spatial_in_, x));
  x = spatial2_->forward(spatial1_->forward(x));
  return out_(mean_of_positions(x));
}

}  // namespace trainkit::hsi
