#pragma once
/// What a face shows and what a voice says, brought together: ResNet18 per frame, a convolutional network over the
/// voice's mel spectrogram, and a fusion of the two.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainkit/nn/mel_spectrogram.h"
#include "trainkit/nn/resnet18.h"

namespace trainkit::emotion {

/// What a model looks at.
enum class Modality { kBoth, kVisual, kAudio };

struct EmotionModelOptions {
  /// simple, complex or huge; see size_of.
  std::string size = "complex";
  /// attention, concat or gated.
  std::string fusion = "attention";
  Modality modality = Modality::kBoth;
  int64_t num_classes = 7;
  int64_t sample_rate = 16'000;
  /// Share of values dropped before the last layer.
  double dropout = 0.3;
};

/// What the names of sizes stand for. Heads of attention have 64 values each.
struct EmotionModelSize {
  /// Values of a frame's, of the voice's and of the whole clip's vector.
  int64_t width;
  /// Kernels of each 3x3 convolution over the spectrogram.
  std::vector<int64_t> audio_channels;
  /// Frames are pooled by attention, not by their mean.
  bool attends_frames;
  /// Transformer layers over the frames before they are pooled.
  int64_t frame_layers;
};
/// simple: 128 wide, 3 convolutions, mean. complex: 256, 4, attention. huge: 512, 4 of twice as many kernels, attention
/// after 2 layers. Throws c10::ValueError for another name.
EmotionModelSize size_of(const std::string& name);
const std::vector<std::string>& model_sizes();
const std::vector<std::string>& fusion_types();

/// Frames to a vector per clip. They travel as bytes, colours last, which is how convolutions like them; ImageNet's
/// mean and deviation are taken on the device.
class VisualEncoder final : public torch::nn::Module {
 public:
  explicit VisualEncoder(const EmotionModelSize& size);
  /// (B, N, H, W, 3) uint8 to (B, width).
  at::Tensor forward(const at::Tensor& frames);
  /// ResNet18 with torchvision's names below "backbone."; its last layer is as wide as the model.
  ResNet18 backbone() const { return backbone_; }

 private:
  at::Tensor pool(const at::Tensor& frames) const;

  ResNet18 backbone_{nullptr};
  torch::nn::ModuleList layers_{nullptr};
  torch::nn::Linear score_{nullptr};  // null: the mean
  at::Tensor mean_, scale_;
};

/// Sound to a vector: log-mel spectrogram (64 filters, a column each 10 ms), made on the device; 3x3 convolutions, each
/// with BN, ReLU and a 2x2 maximum; mean and deviation over the time of each value that is left (statistics pooling,
/// Snyder et al. 2018, with the filters kept apart: where in the spectrum a voice moves is what tells moods); Linear.
class AudioEncoder final : public torch::nn::Module {
 public:
  AudioEncoder(const EmotionModelSize& size, int64_t sample_rate);
  /// (B, samples) float32, at least a quarter of a second, to (B, width).
  at::Tensor forward(const at::Tensor& samples);

 private:
  MelSpectrogram mel_{nullptr};
  torch::nn::Sequential layers_{nullptr};
  torch::nn::Linear out_{nullptr};
};

/// Two vectors to one. concat: Linear over both, ReLU. gated: a share g = sigmoid(Linear) of the one and 1 - g of the
/// other, value by value. attention: a learned query over the two, with heads, then Linear and ReLU. A clip without
/// sound (`has_audio` false) is judged by its frames alone: its voice counts as zeros, gates are open for the frames,
/// and attention does not look at it.
class Fusion final : public torch::nn::Module {
 public:
  Fusion(const std::string& type, int64_t width);
  /// visual, audio (B, width), has_audio (B) bool, to (B, width).
  at::Tensor forward(const at::Tensor& visual, const at::Tensor& audio, const at::Tensor& has_audio);

 private:
  at::Tensor attend(const at::Tensor& tokens, const at::Tensor& has_audio);

  std::string type_;
  int64_t heads_;
  torch::nn::Linear mix_{nullptr}, key_value_{nullptr};
  at::Tensor query_;
};

/// The whole: parameters below "visual.", "audio." and "fusion.", which have learning rates of their own.
class EmotionModel final : public torch::nn::Module {
 public:
  /// Throws c10::ValueError for unknown names.
  explicit EmotionModel(const EmotionModelOptions& options);

  /// frames (B, N, H, W, 3) uint8, samples (B, T) float32, has_audio (B) bool; what the modality leaves out may be
  /// undefined. Class scores, (B, num_classes).
  at::Tensor forward(const at::Tensor& frames, const at::Tensor& samples, const at::Tensor& has_audio);

  const EmotionModelOptions& options() const { return options_; }
  /// Null if the model looks at the sound alone.
  std::shared_ptr<VisualEncoder> visual() const { return visual_; }

 private:
  EmotionModelOptions options_;
  std::shared_ptr<VisualEncoder> visual_;
  std::shared_ptr<AudioEncoder> audio_;
  std::shared_ptr<Fusion> fusion_;  // null for one modality
  torch::nn::Linear classifier_{nullptr};
};

}  // namespace trainkit::emotion
