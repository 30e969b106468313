#pragma once
/// Stochastic gradient descent.

#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// PyTorch's names and defaults.
struct SGDOptions {
  double lr = 1e-3;
  /// Momentum factor in [0, 1). 0 keeps no state.
  double momentum = 0;
  /// Factor of the parameter that is added to the gradient (L2 penalty). A group may override it.
  double weight_decay = 0;
  /// Nesterov momentum; requires momentum > 0.
  bool nesterov = false;
  /// See AdamOptions.
  bool capturable = false;
};

/// SGD with momentum. State per parameter if momentum > 0: "momentum_buffer", initially zero. The first step then
/// equals PyTorch's, which initialises the buffer with the gradient, and a skipped first step leaves it valid. On the
/// CPU, 16-bit parameters are updated through float32 copies, which allocate memory in each step.
/// Source: torch.optim.SGD (PyTorch 2.11, fused), without dampening.
class SGD : public Optimizer {
 public:
  /// Throws c10::ValueError if options are out of range; the message names all of them.
  explicit SGD(const SGDOptions& options = {});
  std::unique_ptr<Optimizer> create_like() const override;

 protected:
  const char* type() const override { return "sgd"; }
  std::vector<std::string> state_names(const ParamGroup& group) const override;
  std::vector<std::pair<const char*, double*>> hyperparameters() override;
  std::string option_problems() const override;
  void apply(const FusedArguments& arguments) override;

 private:
  double momentum_;
  double nesterov_;  ///< 0 or 1, because options are saved as numbers.
};

}  // namespace trainkit
