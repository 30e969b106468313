#pragma once
/// Gradient clipping.

#include <ATen/core/Tensor.h>

#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// Clips the gradients of `optimizer`: multiplies all by min(1, max_norm / (norm + 1e-6)), where norm is the 2-norm
/// over all of them. The device decides; the host reads nothing.
///
/// @param max_norm If it is not positive, or infinite, the norm is computed and the gradients stay unchanged.
/// @return The norm before clipping: scalar on the gradients' device (0 if no parameter has a gradient).
/// Throws c10::Error for gradients of a scaled loss: call scaler.unscale_(optimizer) first.
/// Source: torch.nn.utils.clip_grad_norm_ (PyTorch 2.11), foreach. LibTorch's C++ function copies the norm to the host.
at::Tensor clip_grad_norm_(Optimizer& optimizer, double max_norm);

}  // namespace trainkit
