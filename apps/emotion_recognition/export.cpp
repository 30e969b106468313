#include "emotion_recognition/export.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "emotion_recognition/predict.h"
#include "emotion_recognition/session.h"
#include "trainkit/core/status.h"
#include "trainkit/onnx/onnx.h"

namespace trainkit::emotion {
namespace {

absl::StatusOr<OnnxModel> onnx_model(const TrainedRun& run, const EmotionOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto labels, read_labels(run, options));
  const EmotionModelOptions sizes = model_options(options, static_cast<int64_t>(labels.size()));
  TRAINKIT_ASSIGN_OR_RETURN(const Predictor predictor, run.load([&] { return std::make_shared<EmotionModel>(sizes); }));
  const auto network = std::dynamic_pointer_cast<EmotionModel>(predictor.model().shared_from_this());
  const ClipDatasetOptions clips = dataset_options(options);
  const bool sees = sizes.modality != Modality::kAudio, hears = sizes.modality != Modality::kVisual;
  NamedTensors inputs;
  if (sees) {
    inputs.emplace_back("frames", at::zeros({1, clips.frames, clips.image_size, clips.image_size, 3}, at::kByte));
  }
  if (hears) {
    inputs.emplace_back("audio", at::zeros({1, clips.samples}));
    inputs.emplace_back("has_audio", at::ones({1}, at::kBool));
  }
  const auto forward = [network, sees, hears](const std::vector<at::Tensor>& given) {
    const at::Tensor none;
    const at::Tensor scores =
        network->forward(sees ? given.front() : none, hears ? *(given.end() - 2) : none, hears ? given.back() : none);
    return std::vector{scores, at::softmax(scores, 1)};
  };
  return OnnxModel{
      .module = network,
      .inputs = inputs,
      .forward = forward,
      .outputs = {"scores", "probabilities"},
      .metadata = {{"class_names", nlohmann::json(labels).dump()}, {"sample_rate", std::to_string(clips.sample_rate)}}};
}

}  // namespace

AppCommand export_command(App& app, const EmotionOptions& options) {
  return trainkit::export_command(app, [&options](const TrainedRun& run) { return onnx_model(run, options); });
}

}  // namespace trainkit::emotion
