#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <set>

#include "emotion_recognition/model.h"

using namespace trainkit;
using namespace trainkit::emotion;

namespace {

struct Clips {
  at::Tensor frames = torch::randint(256, {3, 2, 64, 64, 3}).to(torch::kUInt8);
  at::Tensor samples = 0.1 * torch::randn({3, 8000});
  at::Tensor has_audio = torch::ones({3}, torch::kBool);
};

std::shared_ptr<EmotionModel> make(const EmotionModelOptions& options) {
  torch::manual_seed(3);
  return std::make_shared<EmotionModel>(options);
}

/// The parts of the model that have parameters.
std::set<std::string> parts_of(const EmotionModel& model) {
  std::set<std::string> parts;
  for (const auto& parameter : model.named_parameters())
    parts.insert(parameter.key().substr(0, parameter.key().find('.')));
  return parts;
}

}  // namespace

TEST_CASE("Every size, fusion and modality gives scores and trains all its parameters", "[apps][emotion]") {
  const Clips clips;
  std::vector<EmotionModelOptions> all;
  for (const std::string& size : model_sizes()) all.push_back({.size = size});
  for (const std::string& fusion : fusion_types()) all.push_back({.size = "simple", .fusion = fusion});
  all.push_back({.size = "simple", .modality = Modality::kVisual});
  all.push_back({.size = "simple", .modality = Modality::kAudio});
  for (const EmotionModelOptions& options : all) {
    INFO(options.size << ", " << options.fusion << ", modality " << static_cast<int>(options.modality));
    const auto model = make(options);
    const at::Tensor scores = model->forward(clips.frames, clips.samples, clips.has_audio);
    CHECK(scores.sizes() == at::IntArrayRef({3, 7}));
    scores.square().sum().backward();
    for (const auto& parameter : model->named_parameters()) {
      INFO(parameter.key());
      REQUIRE(parameter.value().grad().defined());
      CHECK(parameter.value().grad().abs().sum().item<double>() > 0);
    }
  }
}

TEST_CASE("Parameter names begin with the part that sets their learning rate", "[apps][emotion]") {
  CHECK(parts_of(*make({})) == std::set<std::string>{"audio", "fusion", "visual"});
  CHECK(parts_of(*make({.modality = Modality::kAudio})) == std::set<std::string>{"audio", "fusion"});
  CHECK(parts_of(*make({.modality = Modality::kVisual})) == std::set<std::string>{"fusion", "visual"});
}

TEST_CASE("A masked audio input does not change the scores, and an unmasked one does", "[apps][emotion]") {
  Clips clips;
  clips.has_audio[1] = false;
  for (const std::string& fusion : fusion_types()) {
    INFO(fusion);
    const auto model = make({.size = "simple", .fusion = fusion});
    model->eval();
    const at::NoGradGuard no_grad;
    const at::Tensor before = model->forward(clips.frames, clips.samples, clips.has_audio);
    const at::Tensor after =
        model->forward(clips.frames, clips.samples + 0.2 * torch::randn({3, 8000}), clips.has_audio);
    CHECK(at::equal(before[1], after[1]));
    CHECK_FALSE(at::allclose(before[0], after[0]));
    CHECK(after.isfinite().all().item<bool>());
  }
}

TEST_CASE("A clip's scores do not depend on other clips of the batch, nor on frame order when frames are averaged",
          "[apps][emotion]") {
  const Clips clips;
  const auto model = make({.size = "simple"});
  model->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor whole = model->forward(clips.frames, clips.samples, clips.has_audio);
  const at::Tensor alone =
      model->forward(clips.frames.narrow(0, 1, 1), clips.samples.narrow(0, 1, 1), clips.has_audio.narrow(0, 1, 1));
  CHECK(at::allclose(whole[1], alone[0], 1e-4, 1e-5));
  CHECK(at::allclose(whole, model->forward(clips.frames.flip(1), clips.samples, clips.has_audio), 1e-4, 1e-5));
}

TEST_CASE("Frames are normalised as torchvision's weights expect", "[apps][emotion]") {
  const auto model = make({.size = "simple", .modality = Modality::kVisual});
  model->eval();
  const at::NoGradGuard no_grad;
  const Clips clips;
  const at::Tensor mean = torch::tensor({0.485, 0.456, 0.406}).view({3, 1, 1});
  const at::Tensor deviation = torch::tensor({0.229, 0.224, 0.225}).view({3, 1, 1});
  const at::Tensor images =
      (clips.frames.flatten(0, 1).permute({0, 3, 1, 2}).to(torch::kFloat) / 255 - mean) / deviation;
  const at::Tensor expected = model->visual()->backbone()->forward(images).view({3, 2, 128}).mean(1);
  CHECK(at::allclose(model->visual()->forward(clips.frames), expected, 1e-4, 1e-4));
}

TEST_CASE("Unknown names of sizes and fusions are refused", "[apps][emotion]") {
  CHECK_THROWS_AS(make({.size = "vast"}), c10::ValueError);
  CHECK_THROWS_AS(make({.fusion = "sum"}), c10::ValueError);
}
