// Fits a line to points with an installed libtrainkit, in a hand-written loop.
#include <torch/nn/modules/linear.h>

#include <iostream>
#include <memory>

#include "trainkit/trainkit.h"

int main() {
  const at::Tensor x = at::rand({4096, 1});
  auto points = std::make_shared<trainkit::TensorDataset>(trainkit::TensorDataset({{"x", x}, {"y", 3 * x - 1}}));
  auto loader = trainkit::Prefetcher::create(points, trainkit::RandomSampler(points->size(), {.seed = 1}),
                                             {.batch_size = 64, .num_workers = 1})
                    .value();
  torch::nn::Linear line(1, 1);
  trainkit::AdamW optimizer({.lr = 5e-2, .weight_decay = 0});
  optimizer.add_param_groups(trainkit::default_param_groups(*line));

  double loss = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    while (auto batch = loader->next().value()) {
      const at::Tensor error = at::mse_loss(line->forward((*batch)["x"]), (*batch)["y"]);
      error.backward();
      optimizer.step();
      optimizer.zero_grad();
      loss = error.item<double>();
    }
  }
  std::cout << "y = " << line->weight.item<double>() << " x + " << line->bias.item<double>() << ", loss " << loss
            << "\n";
  return loss < 1e-3 ? 0 : 1;
}
