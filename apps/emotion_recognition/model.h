#pragma once
/// Defines the emotion model: ResNet18 per frame, a convolutional network over the mel spectrogram of the voice, and a
/// fusion of the two.

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

/// Inputs of a model.
enum class Modality { kBoth, kVisual, kAudio };

struct EmotionModelOptions {
  /// simple, complex or huge. See size_of.
  std::string size = "complex";
  /// attention, concat or gated.
  std::string fusion = "attention";
  Modality modality = Modality::kBoth;
  int64_t num_classes = 7;
  int64_t sample_rate = 16'000;
  /// Share of values dropped before the last layer.
  double dropout = 0.3;
};

/// Sizes of a model. Attention heads have 64 values each.
struct EmotionModelSize {
  /// Length of the vectors of a frame, of the voice and of the clip.
  int64_t width;
  /// Output channels of each 3x3 convolution over the spectrogram.
  std::vector<int64_t> audio_channels;
  /// Whether frames are pooled by attention instead of by their mean.
  bool attends_frames;
  /// Number of Transformer layers over the frames before pooling.
  int64_t frame_layers;
};
/// Returns the sizes of a name. simple: width 128, 3 convolutions, mean pooling. complex: width 256, 4 convolutions,
/// attention pooling. huge: width 512, 4 convolutions with twice the channels, 2 Transformer layers and attention
/// pooling. Throws c10::ValueError for another name.
EmotionModelSize size_of(const std::string& name);
const std::vector<std::string>& model_sizes();
const std::vector<std::string>& fusion_types();

/// Encodes the frames of a clip as a vector. Frames are copied to the device as bytes with channels last, the layout
/// that convolutions prefer. The device normalises them with ImageNet's mean and standard deviation.
class VisualEncoder final : public torch::nn::Module {
 public:
  explicit VisualEncoder(const EmotionModelSize& size);
  /// Maps frames (B, N, H, W, 3) uint8 to (B, width).
  at::Tensor forward(const at::Tensor& frames);
  /// ResNet18 with torchvision's parameter names below "backbone."; its last layer has `width` outputs.
  ResNet18 backbone() const { return backbone_; }

 private:
  at::Tensor pool(const at::Tensor& frames) const;

  ResNet18 backbone_{nullptr};
  torch::nn::ModuleList layers_{nullptr};
  torch::nn::Linear score_{nullptr};  // null for mean pooling
  at::Tensor mean_, scale_;
};

/// Encodes the sound of a clip as a vector:
///   1. log-mel spectrogram, computed on the device: 64 filters, one column per 10 ms;
///   2. 3x3 convolutions, each with batch normalisation, ReLU and 2x2 max pooling;
///   3. mean and standard deviation over time, per channel and frequency band. Source: statistics pooling, Snyder et
///   al.
///      2018. Frequency bands stay separate here, because the place of a change in the spectrum tells moods apart;
///   4. Linear.
class AudioEncoder final : public torch::nn::Module {
 public:
  AudioEncoder(const EmotionModelSize& size, int64_t sample_rate);
  /// Maps samples (B, T) float32, at least a quarter of a second, to (B, width).
  at::Tensor forward(const at::Tensor& samples);

 private:
  MelSpectrogram mel_{nullptr};
  torch::nn::Sequential layers_{nullptr};
  torch::nn::Linear out_{nullptr};
};

/// Fuses two vectors into one.
///   concat     ReLU(Linear([visual; audio]))
///   gated      g * visual + (1 - g) * audio with g = sigmoid(Linear([visual; audio])), value by value
///   attention  a learned query attends to the two with several heads; then Linear and ReLU
/// A clip without sound (`has_audio` false) uses its frames only: its audio vector is zero, g is 1, and attention masks
/// the audio.
class Fusion final : public torch::nn::Module {
 public:
  Fusion(const std::string& type, int64_t width);
  /// Maps visual and audio (B, width) and has_audio (B) bool to (B, width).
  at::Tensor forward(const at::Tensor& visual, const at::Tensor& audio, const at::Tensor& has_audio);

 private:
  at::Tensor attend(const at::Tensor& tokens, const at::Tensor& has_audio);

  std::string type_;
  int64_t heads_;
  torch::nn::Linear mix_{nullptr}, key_value_{nullptr};
  at::Tensor query_;
};

/// The complete model. Parameters are below "visual.", "audio." and "fusion.", which have separate learning rates.
class EmotionModel final : public torch::nn::Module {
 public:
  /// Throws c10::ValueError for unknown names.
  explicit EmotionModel(const EmotionModelOptions& options);

  /// Returns class scores (B, num_classes) for frames (B, N, H, W, 3) uint8, samples (B, T) float32 and has_audio (B)
  /// bool. Inputs that the modality does not use may be undefined.
  at::Tensor forward(const at::Tensor& frames, const at::Tensor& samples, const at::Tensor& has_audio);

  const EmotionModelOptions& options() const { return options_; }
  /// Encoder of the frames; null for Modality::kAudio.
  std::shared_ptr<VisualEncoder> visual() const { return visual_; }

 private:
  EmotionModelOptions options_;
  std::shared_ptr<VisualEncoder> visual_;
  std::shared_ptr<AudioEncoder> audio_;
  std::shared_ptr<Fusion> fusion_;  // null for one modality
  torch::nn::Linear classifier_{nullptr};
};

}  // namespace trainkit::emotion
