#include "emotion_recognition/model.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/var.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/transformerlayer.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trainkit/distributed/sync_batch_norm.h"

namespace trainkit::emotion {
namespace {

constexpr int64_t kHeadWidth = 64;

// Filters of the spectrogram, and approximate mean and standard deviation of log-mel values of speech at normal
// loudness. All clips use the same scale: loudness is a feature of the mood.
constexpr int64_t kFilters = 64;
constexpr double kSpeechMean = -6, kSpeechDeviation = 4;

// Mean and standard deviation of ImageNet, which torchvision's weights expect. Source: torchvision.transforms.Normalize
// in torchvision's reference training.
constexpr double kMean[] = {0.485, 0.456, 0.406};
constexpr double kDeviation[] = {0.229, 0.224, 0.225};

torch::nn::Linear linear(int64_t in, int64_t out) { return torch::nn::Linear(in, out); }

void check_name(const char* what, const std::string& name, const std::vector<std::string>& known) {
  TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), name) != known.end(), "unknown ", what, " '", name, "'");
}

}  // namespace

const std::vector<std::string>& model_sizes() {
  static const std::vector<std::string> names = {"simple", "complex", "huge"};
  return names;
}

const std::vector<std::string>& fusion_types() {
  static const std::vector<std::string> names = {"attention", "concat", "gated"};
  return names;
}

EmotionModelSize size_of(const std::string& name) {
  check_name("model size", name, model_sizes());
  if (name == "simple") return {128, {32, 64, 128}, false, 0};
  if (name == "complex") return {256, {32, 64, 128, 256}, true, 0};
  return {512, {64, 128, 256, 512}, true, 2};
}

VisualEncoder::VisualEncoder(const EmotionModelSize& size) {
  backbone_ = register_module("backbone", ResNet18(ResNet18Options{.num_classes = size.width}));
  if (size.frame_layers > 0) {
    layers_ = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < size.frame_layers; ++i) {
      layers_->push_back(torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(size.width, size.width / kHeadWidth).dropout(0.1)));
    }
  }
  if (size.attends_frames) {
    score_ = register_module("score", torch::nn::Linear(torch::nn::LinearOptions(size.width, 1).bias(false)));
  }
  at::Tensor mean = at::tensor(at::ArrayRef<double>(kMean)), deviation = at::tensor(at::ArrayRef<double>(kDeviation));
  mean_ = register_buffer("mean", (255 * mean).to(at::kFloat).view({3, 1, 1}));
  scale_ = register_buffer("scale", (1 / (255 * deviation)).to(at::kFloat).view({3, 1, 1}));
}

at::Tensor VisualEncoder::pool(const at::Tensor& frames) const {
  if (!score_) return frames.mean(1);
  const at::Tensor weights = at::softmax(torch::nn::Linear(score_)->forward(frames), 1);
  return (frames * weights).sum(1);
}

at::Tensor VisualEncoder::forward(const at::Tensor& frames) {
  const int64_t clips = frames.size(0), count = frames.size(1);
  const at::Tensor pixels = frames.flatten(0, 1).permute({0, 3, 1, 2}).to(mean_.scalar_type());
  const at::Tensor images = (pixels - mean_) * scale_;
  at::Tensor vectors = backbone_->forward(images).view({clips, count, -1});
  if (layers_) {
    vectors = vectors.transpose(0, 1);
    for (const auto& layer : *layers_) {
      vectors = layer->as<torch::nn::TransformerEncoderLayer>()->forward(vectors, /*src_mask=*/{},
                                                                         /*src_key_padding_mask=*/{});
    }
    vectors = vectors.transpose(0, 1);
  }
  return pool(vectors);
}

AudioEncoder::AudioEncoder(const EmotionModelSize& size, int64_t sample_rate) {
  mel_ = register_module("mel", MelSpectrogram(MelSpectrogramOptions{.sample_rate = sample_rate,
                                                                     .n_fft = sample_rate / 40,
                                                                     .hop_length = sample_rate / 100,
                                                                     .n_mels = kFilters,
                                                                     .log_floor = 1e-6}));
  layers_ = register_module("layers", torch::nn::Sequential());
  int64_t in = 1;
  for (const int64_t out : size.audio_channels) {
    layers_->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false)));
    layers_->push_back(SyncBatchNorm(SyncBatchNormOptions{.num_features = out}));
    layers_->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
    layers_->push_back(torch::nn::MaxPool2d(2));
    in = out;
  }
  const int64_t bands = kFilters >> size.audio_channels.size();
  out_ = register_module("out", linear(2 * in * bands, size.width));
}

at::Tensor AudioEncoder::forward(const at::Tensor& samples) {
  const at::Tensor picture = (mel_->forward(samples) - kSpeechMean) / kSpeechDeviation;
  const at::Tensor values = layers_->forward(picture.unsqueeze(1)).flatten(1, 2).to(at::kFloat);  // (B, values, time)
  const at::Tensor deviation = (at::var(values, {2}, /*correction=*/0) + 1e-5).sqrt();
  return out_->forward(at::cat({values.mean(2), deviation}, 1));
}

Fusion::Fusion(const std::string& type, int64_t width) : type_(type), heads_(width / kHeadWidth) {
  check_name("fusion", type, fusion_types());
  mix_ = register_module("mix", linear(type == "attention" ? width : 2 * width, width));
  if (type != "attention") return;
  key_value_ = register_module("key_value", linear(width, 2 * width));
  query_ = register_parameter("query", torch::nn::init::normal_(at::empty({heads_, 1, kHeadWidth}), 0, 0.02));
}

/// Returns the attention-weighted sum (B, width) of the tokens (B, 2, width). Masks the audio token of silent clips.
at::Tensor Fusion::attend(const at::Tensor& tokens, const at::Tensor& has_audio) {
  const int64_t clips = tokens.size(0), count = tokens.size(1);
  const auto parts = key_value_->forward(tokens).view({clips, count, 2, heads_, kHeadWidth}).permute({2, 0, 3, 1, 4});
  const at::Tensor keys = parts[0], values = parts[1];  // (B, heads, 2, 64)
  at::Tensor logits = (keys * query_).sum(-1) / std::sqrt(static_cast<double>(kHeadWidth));
  const at::Tensor silent = at::stack({at::zeros_like(has_audio), has_audio.logical_not()}, 1).unsqueeze(1);
  logits = logits.masked_fill(silent, -std::numeric_limits<double>::infinity());
  return (at::softmax(logits, -1).unsqueeze(-1) * values).sum(2).flatten(1);
}

at::Tensor Fusion::forward(const at::Tensor& visual, const at::Tensor& audio, const at::Tensor& has_audio) {
  const at::Tensor heard = has_audio.unsqueeze(1);
  const at::Tensor voice = audio * heard;
  if (type_ == "attention") return mix_->forward(attend(at::stack({visual, voice}, 1), has_audio)).relu();
  const at::Tensor mixed = mix_->forward(at::cat({visual, voice}, 1));
  if (type_ == "concat") return mixed.relu();
  const at::Tensor share = mixed.sigmoid().masked_fill(heard.logical_not(), 1.0);
  return share * visual + (1 - share) * voice;
}

EmotionModel::EmotionModel(const EmotionModelOptions& options) : options_(options) {
  const EmotionModelSize size = size_of(options.size);
  check_name("fusion", options.fusion, fusion_types());
  if (options.modality != Modality::kAudio) visual_ = register_module("visual", std::make_shared<VisualEncoder>(size));
  if (options.modality != Modality::kVisual)
    audio_ = register_module("audio", std::make_shared<AudioEncoder>(size, options.sample_rate));
  // "fusion" contains the classifier too, so that all layers after the encoders use lr_fusion for every modality.
  fusion_ = std::make_shared<Fusion>(options.fusion, size.width);
  auto head = std::make_shared<torch::nn::Module>("fusion");
  if (options.modality == Modality::kBoth) head->register_module("mixer", fusion_);
  classifier_ = torch::nn::Linear(size.width, options.num_classes);
  head->register_module("classifier", classifier_.ptr());
  register_module("fusion", head);
}

at::Tensor EmotionModel::forward(const at::Tensor& frames, const at::Tensor& samples, const at::Tensor& has_audio) {
  at::Tensor vector;
  if (!audio_) {
    vector = visual_->forward(frames);
  } else if (!visual_) {
    vector = audio_->forward(samples);
  } else {
    const at::Tensor seen = visual_->forward(frames);  // first: compilers evaluate arguments in any order
    vector = fusion_->forward(seen, audio_->forward(samples), has_audio);
  }
  if (is_training() && options_.dropout > 0) vector = at::dropout(vector, options_.dropout, /*train=*/true);
  return classifier_->forward(vector);
}

}  // namespace trainkit::emotion
