#pragma once
/// Generalised advantage estimation.

#include <ATen/core/Tensor.h>

namespace trainkit {

/// Steps of a rollout. All tensors have shape (T, N), T steps of N simulators, and are on one device. `reward`, `value`
/// and `next_value` are float32 or float64, all alike; the others are bool.
struct GaeInput {
  at::Tensor reward;
  /// Value of the observation before each step.
  at::Tensor value;
  /// Value of the observation after each step: the value of the next step's, of the last observation of an episode
  /// where it was truncated, and of the observation after the rollout in the last row. Not read where terminated.
  at::Tensor next_value;
  /// Whether the step ended its episode: the task ended, so nothing follows.
  at::Tensor terminated;
  /// Whether the episode was cut off after the step, for example by a time limit: its value continues.
  at::Tensor truncated;
};

struct GaeOptions {
  /// Discount, in [0, 1].
  double gamma = 0.99;
  /// Weight of longer estimates, in [0, 1]: 0 is the one-step temporal difference, 1 the Monte Carlo return.
  double lambda = 0.95;
};

/// Advantages and returns, (T, N) each. A return is an advantage plus the value.
struct GaeResult {
  at::Tensor advantage, returns;
};

/// Computes advantages backwards over time, on the device of the input, without reading from it:
///
///   delta_t = reward_t + gamma * next_value_t * not terminated_t - value_t
///   advantage_t = delta_t + gamma * lambda * not (terminated_t or truncated_t) * advantage_(t+1)
///
/// Source: Schulman et al. 2016, High-dimensional continuous control using generalized advantage estimation, eq. 16,
/// with the value of the last observation where an episode is truncated (Pardo et al. 2018, Time limits in
/// reinforcement learning). The result has no gradient. On the CPU the sum runs from the last step to the first. On a
/// device it is a scan in log2(T) rounds, whose rounding differs. Throws c10::ValueError if shapes or dtypes differ, or
/// gamma or lambda is out of range.
GaeResult gae(const GaeInput& steps, const GaeOptions& options = {});

}  // namespace trainkit
