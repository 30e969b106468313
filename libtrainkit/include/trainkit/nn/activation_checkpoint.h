#pragma once
/// Memory for time: activations that are computed again in backward instead of kept.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trainkit {

struct ActivationCheckpointOptions {
  /// Give the second computation the random numbers of the first. Off saves copying the generators' states; right only
  /// where nothing random happens.
  bool preserve_rng_state = true;
};

/// function(input), keeping only `input` for backward: there, function runs a second time.
///
///   x = checkpoint([&](const at::Tensor& x) { return block->forward(x); }, x, block->parameters());
///
/// `parameters` are all tensors that need gradients and that `function` uses besides its input; a needed one that is
/// left out gets no gradient. The gradients are those of the plain call, bit for bit where the kernels are
/// deterministic: the second run sees the same random numbers (CPU and the input's device), autocast state and input.
///
/// Does not mutate gradients itself, so hooks, torch::autograd::grad and gradient reduction work as usual; may be
/// nested. Not for double backward (an error says so). While grad mode is off it is the plain call. During the second
/// run no other thread may draw from the default generators. Source: torch.utils.checkpoint.checkpoint (PyTorch 2.11,
/// use_reentrant=True), whose autograd.grad form this is.
at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> function, const at::Tensor& input,
                      std::vector<at::Tensor> parameters, ActivationCheckpointOptions options = {});

/// One of several functions that follow each other, as the blocks of a model do.
struct CheckpointedLayer {
  std::function<at::Tensor(const at::Tensor&)> function;
  /// As for checkpoint().
  std::vector<at::Tensor> parameters = {};
};

/// input through all layers, which are divided into `segments` runs of consecutive ones, as long as each other or one
/// shorter: all but the last keep only their input, as checkpoint() does. 1 segment keeps everything. With S of n
/// layers about n / S of them are in memory at a time, and (S - 1) / S of forward is computed twice. Throws
/// c10::ValueError unless 1 <= segments <= layers. Source: torch.utils.checkpoint.checkpoint_sequential (PyTorch 2.11).
at::Tensor checkpoint_sequential(const std::vector<CheckpointedLayer>& layers, int64_t segments,
                                 const at::Tensor& input, ActivationCheckpointOptions options = {});

}  // namespace trainkit
