#pragma once
/// Stochastic gradient descent.

#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// PyTorch's names and defaults.
struct SGDOptions {
  double lr = 1e-3;
  /// 0 keeps no state. In [0, 1).
  double momentum = 0;
  /// Added to the gradient times the parameter (an L2 penalty). Groups may have their own.
  double weight_decay = 0;
  /// Nesterov's momentum; needs momentum > 0.
  bool nesterov = false;
  /// As in AdamOptions.
  bool capturable = false;
};

/// SGD with momentum. Keeps "momentum_buffer" if momentum > 0, zero at first: the first step then equals PyTorch's,
/// which sets it to the gradient, and a first step that is skipped leaves it valid.
/// 16-bit parameters on the CPU are stepped through float32 copies, which allocate memory in each step.
/// Source: torch.optim.SGD (PyTorch 2.11, fused), without dampening.
class SGD : public Optimizer {
 public:
  /// Options out of range are errors (c10::ValueError); all are named at once.
  explicit SGD(const SGDOptions& options = {});
  std::unique_ptr<Optimizer> create_like() const override;

 protected:
  const char* type() const override { return "sgd"; }
  std::vector<std::string> state_names() const override;
  std::vector<std::pair<const char*, double*>> hyperparameters() override;
  std::string option_problems() const override;
  void apply(const FusedArguments& arguments) override;

 private:
  void apply_in_float(const FusedArguments& arguments);

  double momentum_;
  double nesterov_;  ///< 0 or 1: options are saved as numbers.
};

}  // namespace trainkit
