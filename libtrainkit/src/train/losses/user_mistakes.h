#pragma once
// Refuses mistakes in a caller's model, optimizer and loss function, with the remedy. Internal to TrainStep and
// evaluate().

#include <torch/nn/module.h>

#include <cstdint>

#include "trainkit/optim/optimizer.h"
#include "trainkit/train/loss.h"

namespace trainkit::detail {

/// Throws absl::BadStatusOrAccess with an Error of exit code 2:
///   user.unregistered   the model has no parameters, so its layers are not registered
///   user.frozen         none of them requires a gradient
///   user.parameter      the optimizer has a parameter that is not the model's
///   user.sparse         a parameter has sparse gradients, which the optimizer does not take
void check_parameters(const torch::nn::Module& model, const Optimizer& optimizer);

/// The same for the result of a loss function:
///   user.loss      the loss is not a scalar
///   user.metric    a metric is not one
/// @param step 0 in an evaluation
void check_output(const LossOutput& output, int64_t step);

/// The same for a loss whose backward is to follow:
///   user.frozen     no parameter of `model` requires a gradient
///   user.detached   the loss does not require one
void check_requires_grad(const LossOutput& output, const torch::nn::Module& model, int64_t step);

/// Throws user.detached: backward has reached no parameter of the optimizer.
[[noreturn]] void throw_without_gradient(int64_t step);

}  // namespace trainkit::detail
