#pragma once
/// Optimizers: parameters by name, one fused kernel per group, state allocated before the first step.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/amp/scaled_optimizer.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/optim/param_groups.h"

namespace trainkit {

/// What AdamW, Adam and SGD share.
///
///   AdamW optimizer({.lr = 1e-3, .weight_decay = 0.1});
///   optimizer.add_param_groups(default_param_groups(*model));
///   ...
///   loss.backward();
///   optimizer.step();
///   optimizer.zero_grad();
///
/// Everything the steps need is allocated by add_param_group: an out-of-memory error cannot leave a step half done. All
/// parameters are on one device; each is dense, and has its own count of steps, as in PyTorch: one without a gradient
/// is skipped and its count stays. Movable, not copyable; used by one thread at a time. Calls throw c10::Error where
/// the code is wrong. Only what is marked so below reads from the device.
///
/// Source: torch.optim (PyTorch 2.11) with fused=True, whose formulas, names and defaults are kept.
class Optimizer : public ScaledOptimizer {
 public:
  ~Optimizer() override;

  /// Adds parameters and allocates their state. An error (c10::ValueError) if the group is empty, a parameter is not a
  /// dense floating-point leaf, is on another device, is in the optimizer already, or its name is. The same tensor
  /// twice in one group counts once, under its first name.
  void add_param_group(ParamGroup group);
  void add_param_groups(std::vector<ParamGroup> groups);
  const std::vector<ParamGroup>& param_groups() const { return groups_; }

  /// The learning rate before the groups' multiples, as the host last set it.
  double lr() const { return lr_; }
  void set_lr(double lr);
  /// Takes over the learning rates of `other`, an optimizer of the same groups: for a copy of the weights that is
  /// updated alike. On the device where they are kept there; reads from none.
  void set_lr_from(const Optimizer& other);
  /// Each group's learning rate for the next step. Reads from the device where counts_on_device().
  std::vector<double> group_lrs() const;
  /// The same as float32 scalars on the device, without reading them: what they hold changes with the next
  /// set_lr_on_device(). Empty unless counts_on_device(): the host knows group_lrs() then.
  const std::vector<at::Tensor>& device_group_lrs() const { return device_lrs_.views; }

  /// Applies one step to every parameter that has a gradient. Never waits for the device; allocates no tensor memory
  /// unless a gradient's layout is not its parameter's, or the set of parameters with gradients has changed.
  void step() final;
  void step_unless(const at::Tensor& found_inf) final;

  /// Drops the gradients, or (false) keeps their memory and fills them with zeros.
  void zero_grad(bool set_to_none = true);
  std::vector<at::Tensor> gradients() const final;

  /// Steps applied so far, without those a GradScaler skipped: float32 scalar on the parameters' device. It stays the
  /// same tensor until the next add_param_group.
  const at::Tensor& step_count() const { return step_count_; }
  /// The same number, if the host knows it without asking the device: not after a step with a GradScaler on a GPU.
  std::optional<int64_t> known_step_count() const;
  /// A bound on step_count() that the host always knows: steps called, skipped or not.
  int64_t max_step_count() const { return max_step_count_; }
  /// Counts a step that a CUDA graph has done without a call of step(): in max_step_count(), the rest is on the device.
  void count_replayed_step() { ++max_step_count_; }
  /// Another number after each change that a captured step() does not follow: groups added, a state loaded, learning
  /// rates moved to the device, gradients of other parameters than before.
  int64_t version() const { return version_; }

  /// Whether learning rates and step counts are kept and moved on the device: from the first step with a GradScaler on
  /// a GPU on, or from the beginning if `capturable` was chosen.
  bool counts_on_device() const { return on_device_; }
  /// Keeps them there from now on, as `capturable` does from the beginning. Waits for the device once, if they were
  /// not.
  void count_on_device();
  /// On the device: sets every group's learning rate to `lr` (scalar on the device) times the group's multiple. An
  /// error unless counts_on_device(). For schedules; lr() is not changed.
  void set_lr_on_device(const at::Tensor& lr);

  /// "type", "lr", the options of the kind ("beta1", ...), "step"; per group "groups.<i>.lr_multiple",
  /// "...weight_decay"; per parameter "state.<name>.step" and what the kind keeps ("state.<name>.exp_avg"). The tensors
  /// are the live ones. Reads from the device.
  StateDict state_dict() const;
  /// Takes all of that over. An Error of exit code 5, and nothing changed, if the state is of another kind of optimizer
  /// or other groups, or a parameter's state is missing, left over, of another shape or of another type.
  absl::Status load_state_dict(const StateDict& state);

  /// A new optimizer of the same kind and options, without parameters: one for each replica.
  virtual std::unique_ptr<Optimizer> create_like() const = 0;

 protected:
  struct BaseOptions {
    double lr = 0;
    double weight_decay = 0;
    bool capturable = false;
  };
  /// What one fused call works on: parameters of one group and dtype. Everything has the length of `params`.
  struct FusedArguments {
    at::TensorList params;
    at::TensorList gradients;
    /// One list per name in state_names().
    const std::vector<std::vector<at::Tensor>>& state;
    /// The step that is being applied, from 1: float32 scalars on the device.
    at::TensorList steps;
    double lr;
    /// Defined where the learning rate is kept on the device; then `lr` is not to be used.
    const at::Tensor& device_lr;
    double weight_decay;
    const std::optional<at::Tensor>& found_inf;
  };

  explicit Optimizer(const BaseOptions& options);
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;
  BaseOptions base_options() const;

  /// The kind's name in a saved state ("adamw").
  virtual const char* type() const = 0;
  /// The tensors that the kind keeps for each parameter, of its shape, zero at first.
  virtual std::vector<std::string> state_names() const = 0;
  /// The kind's options by name, for saving and loading.
  virtual std::vector<std::pair<const char*, double*>> hyperparameters() = 0;
  /// Every option of the kind that is out of range, "" if none is.
  virtual std::string option_problems() const = 0;
  virtual void apply(const FusedArguments& arguments) = 0;

 private:
  struct Bucket;
  /// Where on_device_: one number per group. `views` are the elements of `values`.
  struct DeviceLrs {
    at::Tensor multiples;
    at::Tensor values;
    std::vector<at::Tensor> views;
  };

  void apply_step(const std::optional<at::Tensor>& found_inf);
  void apply_to(const Bucket& bucket, const std::optional<at::Tensor>& found_inf);
  bool collect_gradients();
  void advance_steps(const std::optional<at::Tensor>& found_inf, bool all_present);
  static DeviceLrs make_device_lrs(const std::vector<ParamGroup>& groups, double lr);
  absl::Status check_state(const StateDict& state) const;

  double lr_;
  double weight_decay_;
  bool capturable_;
  bool on_device_;
  int64_t max_step_count_ = 0;
  int64_t version_ = 0;
  std::vector<ParamGroup> groups_;
  std::vector<Bucket> buckets_;

  /// step_count, then one count per parameter in the order they were added.
  at::Tensor steps_;
  at::Tensor step_count_;
  /// What a step adds to steps_: 1 for the first and for each parameter with a gradient.
  at::Tensor advance_all_;
  at::Tensor advance_present_;
  std::vector<char> present_;
  DeviceLrs device_lrs_;
};

}  // namespace trainkit
