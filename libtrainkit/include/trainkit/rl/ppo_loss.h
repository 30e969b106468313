#pragma once
/// The loss of proximal policy optimisation.

#include <ATen/core/Tensor.h>

#include "trainkit/train/loss.h"

namespace trainkit {

/// What a loss of PPO is computed from, all of shape (N), float, on one device. Those of the policy and the value
/// function carry gradients, the others come from the rollout.
struct PpoTerms {
  at::Tensor log_prob;        ///< of the actions taken, now
  at::Tensor entropy;         ///< of the policy, or its estimate
  at::Tensor value;           ///< of the observations, now
  at::Tensor old_log_prob;    ///< of the actions taken, when they were
  at::Tensor advantage;       ///< by gae()
  at::Tensor returns;         ///< advantage + value, when the actions were taken
  at::Tensor old_value = {};  ///< of the observations, then; needed by PpoOptions::value_clip
};

struct PpoOptions {
  /// Largest change of the probability ratio that is rewarded: epsilon. > 0.
  double clip = 0.2;
  double value_weight = 0.5;
  double entropy_weight = 0;
  /// > 0: the value may move by this much from old_value (OpenAI Baselines' ppo2); 0: plain squared error.
  double value_clip = 0;
};

/// Returns policy_loss + value_weight * value_loss - entropy_weight * entropy, means over the rows, with the metrics
///   policy_loss    mean of max(-A r, -A clip(r, 1 - clip, 1 + clip)), r = exp(log_prob - old_log_prob)
///   value_loss     mean of 0.5 (value - returns)^2; with value_clip, of the larger of this and
///                  0.5 (old_value + clip(value - old_value, -value_clip, value_clip) - returns)^2
///   entropy        mean entropy
///   kl             mean of (r - 1) - log r, an estimate of KL(old, new)
///   clip_fraction  share of the rows with |r - 1| > clip
/// Sources: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv 1707.06347, eq. 7 and 9; the
/// defaults and the clipped value loss are those of CleanRL's ppo.py; kl is k3 of Schulman 2020, "Approximating KL
/// Divergence", http://joschu.net/blog/kl-approx.html. Reads nothing from the device. In float32 on the CPU the loss
/// and its gradients are made in one pass, and there is no second derivative (create_graph). Throws c10::ValueError if
/// a tensor has another shape (one of (N, 1) would broadcast), or an option is out of range.
LossOutput ppo_loss(const PpoTerms& terms, const PpoOptions& options = {});

}  // namespace trainkit
