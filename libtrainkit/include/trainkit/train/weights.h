#pragma once
/// A model's weights by name.

#include <absl/status/status.h>
#include <torch/nn/module.h>

#include "trainkit/io/safetensors.h"

namespace trainkit {

/// Parameters and buffers of `model` by name, in the order of the model; a tensor registered twice (a tied head) stands
/// once, under its first name. The tensors share the model's memory.
NamedTensors named_tensors(const torch::nn::Module& model);

/// Copies `tensors` into the parameters and buffers of `model`, converting dtype and device. All are checked before any
/// is changed: an Error of exit code 5 names up to 20 that are missing, unexpected or of another shape.
absl::Status load_named_tensors(torch::nn::Module& model, const NamedTensors& tensors);

}  // namespace trainkit
