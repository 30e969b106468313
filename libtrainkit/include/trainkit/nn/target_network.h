#pragma once
/// A slow copy of a network, as reinforcement learning and self-supervised learning use it.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/core/state_dict.h"

namespace trainkit {

struct TargetNetworkOptions {
  /// Share of the trained network in an update: target = (1 - tau) * target + tau * online. In (0, 1]; 1 copies it.
  double tau = 0.005;
  /// Calls of update() per update: with tau 1 a copy every n steps.
  int64_t every = 1;
};

/// Averages the parameters of a network into another module of the same kind (Polyak averaging), and copies its
/// buffers.
///
///   Critic critic(...);
///   TargetNetwork target(*critic, Critic(...).ptr(), {.tau = 0.005});
///   ...
///   optimizer.step();
///   target.update();                                        // reads nothing from the device
///   const at::Tensor next = target.module().as<CriticImpl>()->forward(batch["next"]);   // with NoGradGuard
///
/// The target needs no gradients and keeps its mode (train() or eval()). With several replicas each has its own target.
/// The tensors are updated in place, so that a captured CUDA graph may read them. Source of the average:
/// torch.optim.swa_utils.get_ema_multi_avg_fn(1 - tau) of PyTorch 2.11, bitwise identical on the CPU. One thread; both
/// modules are kept alive by their tensors only: the online module must not replace its parameters.
class TargetNetwork {
 public:
  /// Copies the weights of `online` into `target`, which moves to its device. Throws c10::ValueError for options out of
  /// range, or if the modules have other parameters or buffers (names, shapes, dtypes), or share one.
  TargetNetwork(const torch::nn::Module& online, std::shared_ptr<torch::nn::Module> target,
                const TargetNetworkOptions& options = {});

  /// Call after each step of the optimizer. Does not synchronise.
  void update();
  /// The target.
  torch::nn::Module& module() const { return *target_; }

  /// State: "updates" (number of calls of update()) and "target.<name>" of the target's parameters and buffers, the
  /// live tensors. Loading copies them; errors have exit code 5: a tensor is missing or has another shape or dtype.
  StateDict state_dict() const;
  absl::Status load_state_dict(const StateDict& state);

 private:
  std::shared_ptr<torch::nn::Module> target_;
  TargetNetworkOptions options_;
  int64_t updates_ = 0;
  std::vector<std::string> names_;                          // of the parameters, then of the buffers
  std::vector<at::Tensor> online_, average_;                // parameters
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // online, target
};

}  // namespace trainkit
