#pragma once
/// Gradient clipping.

#include <ATen/core/Tensor.h>

#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// Multiplies all gradients of `optimizer` by min(1, max_norm / (norm + 1e-6)), where norm is the 2-norm of all of them
/// together. Decided on the device; the host reads nothing.
///
/// @param max_norm Not positive, or infinite: the gradients are measured and left as they are.
/// @return The norm before clipping: scalar on the gradients' device (0 if no parameter has a gradient).
/// An error (c10::Error) on gradients of a scaled loss: call scaler.unscale_(optimizer) first.
/// Source: torch.nn.utils.clip_grad_norm_ (PyTorch 2.11), foreach. LibTorch's C++ function reads the norm back.
at::Tensor clip_grad_norm_(Optimizer& optimizer, double max_norm);

}  // namespace trainkit
