#pragma once
/// Parameters by name, in groups with options of their own.

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trainkit {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

/// Parameters that share their options.
struct ParamGroup {
  std::vector<NamedParameter> params;
  /// The group's learning rate is the optimizer's times this.
  double lr_multiple = 1.0;
  /// Weight decay of the group; the optimizer's if not set.
  std::optional<double> weight_decay = std::nullopt;
  /// For logs and messages.
  std::string name = {};
};

/// The model's trainable parameters under their names, each tensor once: a tied head, which named_parameters() lists
/// under two names, keeps the first. Frozen parameters (requires_grad false) are left out.
std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& model);

/// trainable_parameters in two groups: "decay" has the matrices, embeddings and convolution kernels (two dimensions or
/// more); "no_decay" has norms, biases and other vectors, with weight_decay 0. An empty group is left out.
/// Source: nanoGPT, GPT.configure_optimizers.
std::vector<ParamGroup> default_param_groups(const torch::nn::Module& model);

}  // namespace trainkit
