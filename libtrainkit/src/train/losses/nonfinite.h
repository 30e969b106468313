#pragma once
// Finds the operation and module that produced the first non-finite value. Internal to TrainStep.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>

#include "trainkit/data/batch.h"

namespace trainkit::detail {

/// Returns whether a scalar on the CPU is finite; true on another device, where the host would have to wait.
bool is_finite_on_host(const at::Tensor& loss);

/// Describes the origin of a loss that is not finite, before its backward, from the autograd graph: the values that the
/// operations keep for backward are checked in the order of forward.
/// - "weight of 'head' is not finite";
/// - "aten::addmm took inf, in 'encoder.0'; 'x' of row 17 is inf" if an input from the batch was not finite;
/// - "aten::sqrt after 'encoder.0' returned nan".
/// The module is the last one whose parameter an operation used. Minus infinity is allowed, since masks contain it.
/// Rows are those of the data set (Batch::row_indices). Calls neither model nor loss function. Returns an empty string
/// if memory runs out. For tensors on the CPU; slow, since it reads every tensor.
std::string first_nonfinite(const torch::nn::Module& module, const Batch& batch, const at::Tensor& loss);

/// Describes gradients that are not finite although the loss is; empty if there are none.
std::string nonfinite_gradient(const torch::nn::Module& module);

}  // namespace trainkit::detail
