#pragma once
/// RMSprop.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// PyTorch's names and defaults.
struct RMSpropOptions {
  double lr = 1e-2;
  /// Decay rate of the running mean of the squared gradient. In [0, 1].
  double alpha = 0.99;
  /// Added to the denominator.
  double eps = 1e-8;
  /// Factor of the parameter that is added to the gradient (L2 penalty). A group may override it.
  double weight_decay = 0;
  /// Momentum factor in [0, 1). 0 keeps no state for it.
  double momentum = 0;
  /// Divide by an estimate of the gradient's standard deviation instead of its root mean square.
  bool centered = false;
  /// See AdamOptions.
  bool capturable = false;
};

/// RMSprop. State per parameter: "square_avg", with momentum "momentum_buffer", and if centered "grad_avg", with the
/// parameter's shape and dtype, initially zero. On the CPU in float32 and float64, and on a GPU in float32, one loop
/// updates all of them. Other dtypes use LibTorch's operations, which allocate memory in each step. A centered variance
/// that rounding makes negative counts as 0, where PyTorch's parameter becomes NaN.
/// Source: Hinton, "Neural networks for machine learning", lecture 6e; Graves, "Generating sequences with recurrent
/// neural networks" (centered); torch.optim.RMSprop (PyTorch 2.11).
class RMSprop : public Optimizer {
 public:
  /// Throws c10::ValueError if options are out of range; the message names all of them.
  explicit RMSprop(const RMSpropOptions& options = {});
  std::unique_ptr<Optimizer> create_like() const override;

 protected:
  const char* type() const override { return "rmsprop"; }
  std::vector<std::string> state_names(const ParamGroup& group) const override;
  std::vector<std::pair<const char*, double*>> hyperparameters() override;
  std::string option_problems() const override;
  void apply(const FusedArguments& arguments) override;

 private:
  bool apply_by_kernel(const FusedArguments& arguments) const;
  void update(const FusedArguments& arguments, size_t i) const;

  double alpha_, eps_, momentum_;
  double centered_;  ///< 0 or 1, because options are saved as numbers.
};

}  // namespace trainkit
