#pragma once
/// A model and the optimizers that the tests train it with.

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "trainkit/optim/adagrad.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/rmsprop.h"
#include "trainkit/optim/sgd.h"

namespace trainkit::test {

inline at::Tensor parameter(at::IntArrayRef shape) { return torch::randn(shape).requires_grad_(); }

/// Two groups of parameters, with gradients that depend on the step only.
struct Model {
  Model() {
    torch::manual_seed(3);
    matrix = parameter({4, 3});
    vector = parameter({5});
  }
  std::vector<ParamGroup> groups() const {
    return {{.params = {{"matrix", matrix}}},
            {.params = {{"vector", vector}}, .lr_multiple = 0.5, .weight_decay = 0.0}};
  }
  void backward(int step) const {
    torch::manual_seed(100 + step);
    matrix.mutable_grad() = torch::randn({4, 3});
    vector.mutable_grad() = step % 4 == 2 ? at::Tensor() : torch::randn({5});
  }
  at::Tensor matrix;
  at::Tensor vector;
};

inline std::unique_ptr<Optimizer> make(const std::string& kind) {
  if (kind == "adamw") return std::make_unique<AdamW>(AdamWOptions{.lr = 0.1, .betas = {0.8, 0.9}});
  if (kind == "adam") return std::make_unique<Adam>(AdamOptions{.lr = 0.1, .weight_decay = 0.1});
  if (kind == "capturable") return std::make_unique<AdamW>(AdamWOptions{.lr = 0.1, .capturable = true});
  if (kind == "rmsprop") {
    return std::make_unique<RMSprop>(
        RMSpropOptions{.lr = 0.01, .alpha = 0.9, .weight_decay = 0.1, .momentum = 0.9, .centered = true});
  }
  if (kind == "adagrad") {
    return std::make_unique<Adagrad>(AdagradOptions{.lr = 0.1, .lr_decay = 0.1, .initial_accumulator_value = 0.5});
  }
  if (kind == "sgd") return std::make_unique<SGD>(SGDOptions{.lr = 0.1});
  return std::make_unique<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
}

}  // namespace trainkit::test
