#pragma once
/// Activation checkpointing: recomputes activations in backward instead of keeping them.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trainkit {

struct ActivationCheckpointOptions {
  /// Restore the random generators before recomputation, so that it draws the same numbers. false saves copying the
  /// generators' states; valid only for functions without random operations.
  bool preserve_rng_state = true;
};

/// Computes function(input) and keeps only `input` for backward, which runs the function again.
///
///   x = checkpoint([&](const at::Tensor& x) { return block->forward(x); }, x, block->parameters());
///
/// `parameters` lists all tensors other than the input that `function` uses and that require gradients; a tensor that
/// is missing gets no gradient. A tensor may occur several times; undefined tensors are skipped. Recomputation sees the
/// same random numbers (CPU and the input's device), autocast state and input. If the kernels are deterministic, the
/// gradients are bitwise those of the plain call, except for a tensor that several calls use, or a call and other code
/// (a tied layer): autograd adds its gradients in another order, and under autocast in float32 instead of the dtype of
/// the cast that the plain calls share.
///
/// Hooks, torch::autograd::grad and gradient reduction work as usual, because the function does not accumulate
/// gradients itself. Calls can be nested. Double backward is an error. With grad mode off it is the plain call. During
/// recomputation no other thread may draw from the default generators. Source: torch.utils.checkpoint.checkpoint
/// (PyTorch 2.11, use_reentrant=True), in its autograd.grad form.
at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> function, const at::Tensor& input,
                      std::vector<at::Tensor> parameters, ActivationCheckpointOptions options = {});

/// One function in a sequence, such as a block of a model.
struct CheckpointedLayer {
  std::function<at::Tensor(const at::Tensor&)> function;
  /// Parameters of the function; see checkpoint().
  std::vector<at::Tensor> parameters = {};
};

/// Applies all layers to the input, divided into `segments` consecutive segments whose lengths differ by at most one.
/// All segments but the last keep only their input, as checkpoint() does; 1 segment keeps everything. With S segments
/// of n layers about n / S layers are in memory at a time, and (S - 1) / S of forward is recomputed. Throws
/// c10::ValueError unless 1 <= segments <= layers. Source: torch.utils.checkpoint.checkpoint_sequential (PyTorch 2.11).
at::Tensor checkpoint_sequential(const std::vector<CheckpointedLayer>& layers, int64_t segments,
                                 const at::Tensor& input, ActivationCheckpointOptions options = {});

}  // namespace trainkit
