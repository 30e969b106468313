#pragma once
/// A DCGAN of 16 x 16 pixels and its two players, for gan.cpp.

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "trainkit/trainkit.h"

constexpr int64_t kSide = 16, kNoise = 16;

struct GanImpl : torch::nn::Module {
  using Conv = torch::nn::Conv2dOptions;
  using ConvTranspose = torch::nn::ConvTranspose2dOptions;
  torch::nn::Sequential generator = register_module(
      "generator",
      torch::nn::Sequential(
          torch::nn::ConvTranspose2d(ConvTranspose(kNoise, 48, 4).bias(false)), torch::nn::BatchNorm2d(48),
          torch::nn::ReLU(), torch::nn::ConvTranspose2d(ConvTranspose(48, 24, 4).stride(2).padding(1).bias(false)),
          torch::nn::BatchNorm2d(24), torch::nn::ReLU(),
          torch::nn::ConvTranspose2d(ConvTranspose(24, 1, 4).stride(2).padding(1)), torch::nn::Tanh()));
  torch::nn::Sequential discriminator = register_module(
      "discriminator", torch::nn::Sequential(torch::nn::Conv2d(Conv(1, 24, 4).stride(2).padding(1)),
                                             torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)),
                                             torch::nn::Conv2d(Conv(24, 48, 4).stride(2).padding(1).bias(false)),
                                             torch::nn::BatchNorm2d(48),
                                             torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)),
                                             torch::nn::Conv2d(Conv(48, 1, 4))));
};
TORCH_MODULE(Gan);

inline at::Tensor bce(const at::Tensor& logits, double label) {
  return at::binary_cross_entropy_with_logits(logits, at::full_like(logits, label));
}

/// The discriminator and the generator. Their losses need the field "picture" and the shared tensor "fake", which is
/// computed once: the discriminator sees it detached, the generator learns through it.
inline std::vector<trainkit::Player> gan_players(std::shared_ptr<trainkit::Optimizer> of_discriminator,
                                                 std::shared_ptr<trainkit::Optimizer> of_generator) {
  using trainkit::Batch, trainkit::Shared;
  return {{.name = "d",
           .parameters = {"discriminator.*"},
           .optimizer = std::move(of_discriminator),
           .loss =
               [](Gan& gan, const Batch& batch, const Shared& shared) {
                 return bce(gan->discriminator->forward(batch["picture"]), 0.9) +
                        bce(gan->discriminator->forward(shared.at("fake").detach()), 0);
               }},
          {.name = "g",
           .parameters = {"generator.*"},
           .optimizer = std::move(of_generator),
           .loss = [](Gan& gan, const Batch&, const Shared& shared) {
             return bce(gan->discriminator->forward(shared.at("fake")), 1);
           }}};
}
