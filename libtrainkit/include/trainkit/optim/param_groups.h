#pragma once
/// Named parameters in groups with separate options.

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
  /// Factor of the optimizer's learning rate for this group.
  double lr_multiple = 1.0;
  /// Weight decay of the group; the optimizer's if not set.
  std::optional<double> weight_decay = std::nullopt;
  /// Name for logs and messages.
  std::string name = {};
};

/// Returns the model's trainable parameters with their names. Each tensor appears once: a tied parameter, which
/// named_parameters() lists under two names, keeps the first. Skips frozen parameters (requires_grad false).
std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& model);

/// Returns trainable_parameters in two groups. "decay" has parameters with two or more dimensions: matrices, embeddings
/// and convolution kernels. "no_decay" has norms, biases and other vectors, with weight_decay 0. Leaves out an empty
/// group.
/// Source: nanoGPT, GPT.configure_optimizers.
std::vector<ParamGroup> default_param_groups(const torch::nn::Module& model);

}  // namespace trainkit
