#pragma once
/// Optimizers with named parameters, one fused kernel per group, and state that is allocated before the first step.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/amp/grad_scaler.h"
#include "trainkit/core/state_dict.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

namespace detail {
class OptimizerParts;
}

// ---- Named parameters in groups with separate options.

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

/// Parameters that share their options.
struct ParamGroup {
  std::vector<NamedParameter> params;
  /// Factor of the optimizer's learning rate for this group.
  double lr_multiple = 1.0;
  /// Weight decay of the group; the optimizer's if not set.
  std::optional<double> weight_decay = std::nullopt;
  /// Name for logs and messages.
  std::string name = {};
  /// Matrices whose update Muon makes orthogonal. False for other optimizers.
  bool orthogonalize = false;
  /// TrainStep and Trainer freeze the parameters (requires_grad false) in the steps before this many were done, and
  /// train them from then on: a function of the step, so a resumed run agrees. 0 leaves them as they are. Frozen
  /// parameters have no gradient and no decay, and keep their counts. Not with sharding.
  int64_t trainable_from = 0;
};

/// Returns the model's trainable parameters with their names. Each tensor appears once: a tied parameter, which
/// named_parameters() lists under two names, keeps the first. Skips frozen parameters (requires_grad false).
std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& model);

/// Returns trainable_parameters in two groups. "decay" has parameters with two or more dimensions: matrices, embeddings
/// and convolution kernels. "no_decay" has norms, biases and other vectors, with weight_decay 0. Leaves out an empty
/// group.
/// Source: nanoGPT, GPT.configure_optimizers.
std::vector<ParamGroup> default_param_groups(const torch::nn::Module& model);

/// Base of AdamW, Adam, SparseAdam, SGD, Muon, RMSprop and Adagrad.
///
///   AdamW optimizer({.lr = 1e-3, .weight_decay = 0.1});
///   optimizer.add_param_groups(default_param_groups(*model));
///   ...
///   loss.backward();
///   optimizer.step();
///   optimizer.zero_grad();
///
/// add_param_group allocates everything that the steps need, so an out-of-memory error cannot leave a step half done.
/// All parameters are dense and on one device; gradients are dense too, except with SparseAdam and Adagrad. Each has
/// its own step count, as in PyTorch; a parameter without a gradient is skipped and keeps its count. Movable, not
/// copyable; used by one thread at a time. Incorrect use throws c10::Error. Only the functions documented so read from
/// the device.
///
/// Source: torch.optim (PyTorch 2.11) with fused=True; keeps its formulas, names and defaults.
class Optimizer : public ScaledOptimizer {
 public:
  ~Optimizer() override = default;

  /// Adds parameters and allocates their state. Throws c10::ValueError if the group is empty. Throws it too if
  /// a parameter is not a dense floating-point leaf, is on another device, is already in the optimizer, or has a name
  /// that is in use. A tensor that occurs twice in one group counts once, under its first name.
  void add_param_group(ParamGroup group);
  void add_param_groups(std::vector<ParamGroup> groups);
  const std::vector<ParamGroup>& param_groups() const;

  /// Learning rate before the groups' multiples, as last set on the host.
  double lr() const;
  /// Learning rate that schedules multiply: the constructor's, or that of the last set_lr(). PyTorch's initial_lr.
  double initial_lr() const;
  /// Sets both, so that a later LRScheduler starts from `lr`.
  void set_lr(double lr);
  /// Returns each group's learning rate for the next step. Reads from the device if the rates are there: after the
  /// first step with a GradScaler on a GPU, or from the start with `capturable`.
  std::vector<double> group_lrs() const;

  /// Applies one step to every parameter that has a gradient. Never waits for the device. Allocates tensor memory only
  /// if a gradient's layout differs from its parameter's, or if the set of parameters with gradients has changed.
  void step() final;
  void step_unless(const at::Tensor& found_inf) final;

  /// Releases the gradients; if `set_to_none` is false, keeps their memory and fills them with zeros.
  void zero_grad(bool set_to_none = true);
  /// Coalesces a sparse gradient and returns its values, which it shares.
  std::vector<at::Tensor> gradients() const final;

  /// Number of applied steps, without those that a GradScaler skipped: float32 scalar on the parameters' device. The
  /// tensor stays the same until the next add_param_group. As PyTorch's, it counts to 16,777,216 and stays there.
  const at::Tensor& step_count() const;

  /// State: "type", "lr", "initial_lr" (missing in older states, which keep this optimizer's), "step" and the options
  /// of the type ("beta1", ...); per group "groups.<i>.lr_multiple" and "groups.<i>.weight_decay"; per parameter
  /// "state.<name>.step" and the tensors of the type ("state.<name>.exp_avg"). The tensors are the live ones; they
  /// change only in the optimizer's step, on which background saves rely. Reads from the device.
  StateDict state_dict() const;
  /// Loads a state. Returns an Error of exit code 5 and changes nothing in these cases: the state has another
  /// optimizer type or other groups; a parameter's state is missing, left over, or of another shape or dtype.
  absl::Status load_state_dict(const StateDict& state);

  /// Creates an optimizer of the same type and options, without parameters: one for each replica.
  virtual std::unique_ptr<Optimizer> create_like() const = 0;
  /// Returns the groups that TrainStep and Trainer add to an optimizer without parameters: default_param_groups, for
  /// Muon with a third group.
  virtual std::vector<ParamGroup> groups_for(const torch::nn::Module& model) const;

 protected:
  struct BaseOptions {
    double lr = 0;
    double weight_decay = 0;
    bool capturable = false;
    /// Whether apply() takes sparse gradients. They are coalesced.
    bool takes_sparse = false;
    /// First value of the state's tensors.
    double initial_state = 0;
  };
  /// Arguments of one fused call: parameters of one group and dtype. All lists have the length of `params`.
  struct FusedArguments {
    at::TensorList params;
    at::TensorList gradients;
    /// One list per name in state_names().
    const std::vector<std::vector<at::Tensor>>& state;
    /// Number of the step being applied, from 1: float32 scalars on the device.
    at::TensorList steps;
    double lr;
    /// Defined if the learning rate is kept on the device; `lr` must then not be used.
    const at::Tensor& device_lr;
    double weight_decay;
    const std::optional<at::Tensor>& found_inf;
    bool orthogonalize;
  };

  explicit Optimizer(const BaseOptions& options);
  Optimizer(Optimizer&&) noexcept = default;
  Optimizer& operator=(Optimizer&&) noexcept = default;
  BaseOptions base_options() const;

  /// Name of the type in a saved state ("adamw").
  virtual const char* type() const = 0;
  /// Names of the tensors kept for each parameter of `group`, each with its shape and initially
  /// BaseOptions::initial_state.
  virtual std::vector<std::string> state_names(const ParamGroup& group) const = 0;
  /// Allocates what the steps of a new group need in addition. Throws c10::ValueError for a group that the type cannot
  /// update.
  virtual void reserve(const ParamGroup& group);
  /// Options of the type by name, for saving and loading.
  virtual std::vector<std::pair<const char*, double*>> hyperparameters() = 0;
  /// Returns a description of every option that is out of range; "" if there is none.
  virtual std::string option_problems() const = 0;
  virtual void apply(const FusedArguments& arguments) = 0;

 private:
  friend class detail::OptimizerParts;
  void apply_step(const std::optional<at::Tensor>& found_inf);

  /// Never shared: programs that derive from this class move it without knowing the parts.
  std::shared_ptr<detail::OptimizerParts> parts_;
};

// ---- Gradient clipping.

/// Clips the gradients of `optimizer`: multiplies all by min(1, max_norm / (norm + 1e-6)), where norm is the 2-norm
/// over all of them. The device decides; the host reads nothing.
///
/// @param max_norm If it is not positive, or infinite, the norm is computed and the gradients stay unchanged.
/// @return The norm before clipping: scalar on the gradients' device (0 if no parameter has a gradient, or
/// without parameters). That of a sparse gradient is the norm of its values. On the CPU the squares of a tensor of more
/// than 2^24 elements are added in float64, in pieces. Throws c10::Error for gradients of a scaled loss: call
/// scaler.unscale_(optimizer) first. Throws c10::ValueError for a sparse gradient unless the optimizer is SparseAdam or
/// Adagrad. Source: torch.nn.utils.clip_grad_norm_ (PyTorch 2.11), foreach. LibTorch's C++ function copies the norm to
/// the host.
at::Tensor clip_grad_norm_(Optimizer& optimizer, double max_norm);

}  // namespace trainkit
