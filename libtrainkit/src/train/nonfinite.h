#pragma once
// Finds the operation and module that produced the first non-finite value. Internal to TrainStep.

#include <torch/nn/module.h>

#include <functional>
#include <string>

namespace trainkit::detail {

/// Calls `run`, a forward and backward pass of `module` in this thread, and checks the inputs and outputs of every
/// operation, in autograd's threads too. Returns a description of the first non-finite value:
/// - "weight of 'head' is not finite";
/// - "aten::addmm took inf, in 'encoder.0'" if an input from the batch was not finite;
/// - "aten::sqrt after 'encoder.0' returned nan".
/// The module is the last one whose parameter an operation used. Minus infinity is allowed, since masks contain it.
/// Returns an empty string if nothing was found or memory ran out. Slow, since it reads every tensor. Does not check
/// operations of other threads (a background save).
std::string first_nonfinite(const torch::nn::Module& module, const std::function<void()>& run);

}  // namespace trainkit::detail
