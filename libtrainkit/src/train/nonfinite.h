#pragma once
// Finds the operation and the module that the first value which is not finite came from. Internal to TrainStep.

#include <torch/nn/module.h>

#include <functional>
#include <string>

namespace trainkit::detail {

/// Calls `run`, a forward and backward pass of `module` in this thread, and looks at what every operation takes and
/// returns, in autograd's threads too. Says what came first: "weight of 'head' is not finite", "aten::addmm took inf,
/// in 'encoder.0'" (what it took is of the batch), "aten::sqrt after 'encoder.0' returned nan"; the module is the last
/// one whose parameter an operation took. Minus infinity, which masks are made of, is let pass. Empty if nothing was
/// found, or there is no memory to look. Slow, since it reads every tensor; what other threads run meanwhile (a save in
/// the background) is not looked at.
std::string first_nonfinite(const torch::nn::Module& module, const std::function<void()>& run);

}  // namespace trainkit::detail
