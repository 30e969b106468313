#pragma once
/// Distributions of actions. Every function runs on the device of its tensors and does not synchronise with it. Random
/// numbers come from the generator that the caller passes, of the same device:
///   const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <utility>

namespace trainkit {

/// A choice among K actions. Formulas: torch.distributions.Categorical of PyTorch 2.15.
class Categorical {
 public:
  /// Takes logits (..., K), any real numbers, in float32 or float64. `mask`, bool (..., K), is false for actions that
  /// are not allowed: they have probability 0 and get no gradient. Each row must allow an action: one that allows none
  /// gives all actions equal probability.
  explicit Categorical(const at::Tensor& logits, const at::Tensor& mask = {});

  /// Draws an action of each row: int64 (...). As torch.multinomial, by the largest probability divided by an
  /// exponential random number.
  at::Tensor sample(const at::Generator& generator) const;
  /// Returns the most probable action of each row: int64 (...).
  at::Tensor mode() const;
  /// Returns the logarithms of the probabilities of `action`, int64 (...): (...).
  at::Tensor log_prob(const at::Tensor& action) const;
  /// Returns -sum(p log p) of each row: (...). Actions that are not allowed do not count.
  at::Tensor entropy() const;

 private:
  at::Tensor log_probs_;
};

/// Independent normal distributions of the A components of an action. Sums of log_prob() and entropy() run over the
/// last dimension. Formulas: torch.distributions.Independent(Normal(mean, std), 1).
class Normal {
 public:
  /// Takes a mean (..., A), and standard deviations > 0 that broadcast to it, for example (A).
  Normal(const at::Tensor& mean, const at::Tensor& std);

  /// Draws mean + std * noise: (..., A). Gradients flow to mean and std.
  at::Tensor sample(const at::Generator& generator) const;
  const at::Tensor& mode() const { return mean_; }
  /// Returns the logarithm of the density at `action` (..., A): (...).
  at::Tensor log_prob(const at::Tensor& action) const;
  /// Returns 0.5 log(2 pi e std^2), summed: (...).
  at::Tensor entropy() const;

 private:
  at::Tensor mean_, std_;
};

/// tanh of a normal distribution: actions in (-1, 1), as soft actor-critic uses it. Source: Haarnoja et al. 2018,
/// "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905, appendix C. Its logarithm of the derivative,
/// log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), is torch.distributions.TanhTransform's, finite for every u.
class TanhNormal {
 public:
  /// As Normal; its values go through tanh.
  TanhNormal(const at::Tensor& mean, const at::Tensor& std) : normal_(mean, std) {}

  /// Draws an action (..., A), and the logarithm of its density (...), without the rounding of the inverse tanh.
  /// Gradients flow to mean and std through both.
  std::pair<at::Tensor, at::Tensor> sample(const at::Generator& generator) const;
  /// Returns tanh(mean).
  at::Tensor mode() const;
  /// Returns the logarithm of the density at `action` (..., A): (...). Takes the inverse tanh of actions that are cut
  /// off one rounding step before -1 and 1: with float32 exact to 1e-3 for |action| < 0.9999. Keep the value of
  /// sample() instead where you can.
  at::Tensor log_prob(const at::Tensor& action) const;
  /// Estimates the entropy, which has no closed form, as -log_prob of one sample of each row: (...). Unbiased.
  at::Tensor entropy_estimate(const at::Generator& generator) const;

 private:
  Normal normal_;
};

}  // namespace trainkit
