#pragma once
/// Adagrad.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// PyTorch's names and defaults.
struct AdagradOptions {
  double lr = 1e-2;
  /// The rate of step n is lr / (1 + (n - 1) lr_decay).
  double lr_decay = 0;
  /// Factor of the parameter that is added to the gradient (L2 penalty). A group may override it. 0 for sparse
  /// gradients.
  double weight_decay = 0;
  /// Value at which the sum of the squared gradients begins.
  double initial_accumulator_value = 0;
  /// Added to the denominator.
  double eps = 1e-10;
  /// See AdamOptions.
  bool capturable = false;
};

/// Adagrad. State per parameter: "sum", with its shape and dtype, initially initial_accumulator_value. A sparse
/// gradient of torch::nn::Embedding with sparse(true) changes only its rows, as torch.optim.Adagrad's; it uses
/// LibTorch's operations, which allocate memory for the gradient's rows, and on a GPU each step waits for the number of
/// rows. Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
/// optimization"; torch.optim.Adagrad (PyTorch 2.11, fused).
class Adagrad : public Optimizer {
 public:
  /// Throws c10::ValueError if options are out of range; the message names all of them.
  explicit Adagrad(const AdagradOptions& options = {});
  std::unique_ptr<Optimizer> create_like() const override;

 protected:
  const char* type() const override { return "adagrad"; }
  std::vector<std::string> state_names(const ParamGroup&) const override { return {"sum"}; }
  std::vector<std::pair<const char*, double*>> hyperparameters() override;
  std::string option_problems() const override;
  void apply(const FusedArguments& arguments) override;

 private:
  void update_rows(const FusedArguments& arguments, size_t i) const;

  double lr_decay_, initial_accumulator_value_, eps_;
};

}  // namespace trainkit
