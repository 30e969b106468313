#pragma once
// Keeps the gradients of a step apart from those of others. Internal to TrainStep.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit::detail {

// Note [Whose gradient]
// ~~~~~~~~~~~~~~~~~~~~~
// A step updates the parameters of its own optimizer with the gradients of its own loss. Autograd, however, adds to the
// gradient of every parameter that a loss depends on. So
// - begin() drops the gradients of the step's own parameters, on every replica: those of the caller's own backward, of
//   another TrainStep, of a step that failed;
// - SetAside takes the gradients of the model's other parameters away while the step runs, and puts them back. What the
//   step's loss has added to them is dropped. Another step, or the caller's own loop, finds its gradients unchanged.
// Both look at handles only and allocate nothing. Gradients that stay in memory (zero_grad_set_to_none = false) are
// zeroed again only if their version shows that somebody has changed them.

class StepGradients {
 public:
  /// @param set_to_none TrainStepOptions::zero_grad_set_to_none
  StepGradients(const ReplicaStrategy& devices, const Optimizer& optimizer, bool set_to_none);
  StepGradients(const StepGradients&) = delete;
  StepGradients& operator=(const StepGradients&) = delete;

  /// Freezes or thaws the groups with ParamGroup::trainable_from before step `done` + 1, on the first replica.
  void follow_step(int64_t done) const;
  /// Drops the gradients that others have left in the step's parameters, before its first forward.
  void begin();
  /// Follows the release of the step's gradients.
  void end();
  /// Returns whether a parameter of the step has a gradient, or had one when this was called before.
  bool any();

  /// Sets the gradients of the other parameters aside during its lifetime. Not nested.
  class SetAside {
   public:
    explicit SetAside(StepGradients& gradients);
    ~SetAside();
    SetAside(const SetAside&) = delete;
    SetAside& operator=(const SetAside&) = delete;

   private:
    StepGradients& gradients_;
  };

 private:
  int64_t count_parameters() const;
  void list_parameters();

  const ReplicaStrategy& devices_;
  const Optimizer& optimizer_;
  bool set_to_none_;
  bool has_any_ = false;
  int64_t trained_version_ = 0;
  int64_t count_ = 0;                                    // parameters of the optimizer when the lists were made
  std::vector<at::Tensor> own_, others_;                 // parameters, on all replicas
  std::vector<at::Tensor> aside_;                        // gradients of others_
  std::vector<std::pair<const void*, int64_t>> zeroed_;  // gradients of own_ that stay in memory, and their versions
};

}  // namespace trainkit::detail
