#pragma once
/// Two players on generated rows, and the same loop by hand.

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "trainkit/data/tensor_dataset.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/player.h"

namespace trainkit::test {

struct GanImpl : torch::nn::Module {
  explicit GanImpl(double dropout = 0)
      : generator(register_module(
            "generator", torch::nn::Sequential(torch::nn::Linear(4, 16), torch::nn::ReLU(), torch::nn::Linear(16, 8)))),
        discriminator(register_module("discriminator",
                                      torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::LeakyReLU(),
                                                            torch::nn::Dropout(dropout), torch::nn::Linear(16, 1)))) {}
  torch::nn::Sequential generator, discriminator;
};
TORCH_MODULE(Gan);

/// Mean of the binary cross-entropy of all rows with one label.
inline at::Tensor bce(const at::Tensor& logits, double label) {
  return at::binary_cross_entropy_with_logits(logits, at::full_like(logits, label));
}

inline Shared gan_fake(Gan& gan, const Batch& batch) { return {{"fake", gan->generator->forward(batch["z"])}}; }
inline LossOutput loss_of_d(Gan& gan, const Batch& batch, const Shared& shared) {
  return bce(gan->discriminator->forward(batch["x"]), 1) +
         bce(gan->discriminator->forward(shared.at("fake").detach()), 0);
}
inline LossOutput loss_of_g(Gan& gan, const Batch&, const Shared& shared) {
  return bce(gan->discriminator->forward(shared.at("fake")), 1);
}

/// The discriminator, then the generator, with their losses on shared tensors.
inline std::vector<Player> gan_players() {
  return {{.name = "d",
           .parameters = {"discriminator.*"},
           .optimizer = std::make_shared<Adam>(AdamOptions{.lr = 1e-2}),
           .loss = loss_of_d},
          {.name = "g",
           .parameters = {"generator.*"},
           .optimizer = std::make_shared<Adam>(AdamOptions{.lr = 5e-3}),
           .loss = loss_of_g}};
}

/// Rows with the fields x (8), as data, and z (4), as noise.
inline std::shared_ptr<const Dataset> gan_rows(int64_t rows) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  return std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{
      {"x", at::randn({rows, 8}, generator).mul(0.3).add(1)}, {"z", at::randn({rows, 4}, generator)}});
}

/// Batch `i` of `rows` rows.
inline Batch gan_batch(int64_t i, int64_t rows = 12) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(i) + 100);
  return Batch(std::make_shared<const std::vector<FieldSpec>>(
                   std::vector<FieldSpec>{{"x", at::kFloat, {8}}, {"z", at::kFloat, {4}}}),
               {at::randn({rows, 8}, generator), at::randn({rows, 4}, generator)});
}

}  // namespace trainkit::test
