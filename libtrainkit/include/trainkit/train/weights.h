#pragma once
/// A model's weights by name.

#include <absl/status/status.h>
#include <torch/nn/module.h>

#include <string>

#include "trainkit/io/safetensors.h"

namespace trainkit {

/// Parameters and buffers of `model` by name, in the order of the model; a tensor registered twice (a tied head) stands
/// once, under its first name. The tensors share the model's memory.
NamedTensors named_tensors(const torch::nn::Module& model);

/// Copies `tensors` into the parameters and buffers of `model`, as copy_named_tensors does: all are checked before any
/// is changed. `where` is the file to blame.
absl::Status load_named_tensors(torch::nn::Module& model, const NamedTensors& tensors, const std::string& where = {});

/// --init_from: load_named_tensors of all tensors of a safetensors file. Errors: exit code 5.
absl::Status load_weights(torch::nn::Module& model, const std::string& path);

}  // namespace trainkit
