#pragma once
// Clips the gradients of several copies of a model. Internal to TrainStep.

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainkit/optim/optimizer.h"

namespace trainkit::detail {

/// As clip_grad_norm_, for the optimizers of all copies of a model. With sharding each one updates a part of the
/// parameters, and the norm is that of all. Returns it for each of them, on its device. Allocates everything before it
/// changes a gradient.
std::vector<at::Tensor> clip_grad_norms_(const std::vector<Optimizer*>& optimizers, double max_norm);

}  // namespace trainkit::detail
