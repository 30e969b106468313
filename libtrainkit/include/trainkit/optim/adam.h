#pragma once
/// Adam and AdamW.

#include <array>

#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// PyTorch's names and defaults.
struct AdamOptions {
  double lr = 1e-3;
  /// Decay rates of the running means of the gradient and of its square. Each in [0, 1).
  std::array<double, 2> betas = {0.9, 0.999};
  /// Added to the denominator.
  double eps = 1e-8;
  /// Adam adds weight_decay * parameter to the gradient (L2 penalty). A group may override it.
  double weight_decay = 0;
  /// Keep learning rates and step counts on the device from the first step, so that a step can be captured in a CUDA
  /// graph. Otherwise they move to the device when a GradScaler needs them there.
  bool capturable = false;
};

/// Options of AdamW, which shrinks the parameter by lr * weight_decay instead.
struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool capturable = false;
};

/// Adam with bias correction. State per parameter: "exp_avg" and "exp_avg_sq", with the parameter's shape and dtype.
/// Source: Kingma and Ba, "Adam: A method for stochastic optimization"; torch.optim.Adam (PyTorch 2.11, fused).
class Adam : public Optimizer {
 public:
  /// Throws c10::ValueError if options are out of range; the message names all of them.
  explicit Adam(const AdamOptions& options = {});
  std::unique_ptr<Optimizer> create_like() const override;

 protected:
  AdamOptions options() const;
  const char* type() const override { return "adam"; }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  std::vector<std::pair<const char*, double*>> hyperparameters() override;
  std::string option_problems() const override;
  void apply(const FusedArguments& arguments) override;

  std::array<double, 2> betas_;
  double eps_;
};

/// Adam with decoupled weight decay.
/// Source: Loshchilov and Hutter, "Decoupled weight decay regularization"; torch.optim.AdamW (PyTorch 2.11, fused).
class AdamW : public Adam {
 public:
  explicit AdamW(const AdamWOptions& options = {});
  std::unique_ptr<Optimizer> create_like() const override;

 protected:
  const char* type() const override { return "adamw"; }
  void apply(const FusedArguments& arguments) override;
};

}  // namespace trainkit
