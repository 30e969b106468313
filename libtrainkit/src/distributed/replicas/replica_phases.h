#pragma once
// Phases of a step, each of which trains a part of the parameters.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace trainkit::detail {

// Note [Phases]
// ~~~~~~~~~~~~~
// Players of a TrainStep train disjoint parameters of one model, one after another. The loss of a player may depend on
// parameters of the others (a generator's loss on the discriminator), so backward gets the player's own parameters as
// `inputs`: it computes no other gradient, and leaves no trace in the others. What sums gradients over replicas and
// ranks exists once per phase, over its parameters only: it never waits for the gradients of another player.
//
// SyncBatchNorm layers of all replicas wait for each other in backward. The rows of one replica may skip the player's
// parameters before such a layer, so that autograd would leave it out there alone: its nodes are inputs too.

/// The phases of a replicator. Without set() there is one, of all parameters.
class ReplicaPhases {
 public:
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  /// Divides the parameters: the names of each phase; empty: one of all. Call it before the first run, on every rank
  /// alike.
  void set(std::vector<std::set<std::string>> names);
  /// Lets the runs that follow compute and reduce the gradients of the parameters of `phase` alone. `keeps_graph`: a
  /// later phase runs backward through a part of the same graph. Between steps.
  void begin(size_t phase, bool keeps_graph);
  bool are_set() const { return !phases_.empty(); }
  size_t current() const { return current_; }
  /// Called by set() (true) and begin() (false).
  void on_change(std::function<void(bool is_new)> call) { on_change_ = std::move(call); }

  /// Lists the parameters of the phase on each replica, if `version` of the trained ones is new. Call it before a run,
  /// from one thread.
  void list_inputs(const std::vector<std::shared_ptr<torch::nn::Module>>& replicas, int64_t version);
  /// Runs the backward of a replica: through the graph to the parameters of the phase.
  void backward(int64_t replica, const at::Tensor& loss) const;
  /// Returns those of `named` that belong to the phase.
  Named of_phase(Named named) const;

 private:
  struct Phase {
    std::set<std::string> names;
    std::vector<std::shared_ptr<torch::nn::Module>> replicas = {};
    std::vector<std::vector<at::Tensor>> inputs = {};  // by replica
    int64_t version = -1;                              // of the trained parameters in `inputs`
  };

  std::vector<Phase> phases_;
  size_t current_ = 0;
  bool keeps_graph_ = false;
  std::function<void(bool is_new)> on_change_;
};

}  // namespace trainkit::detail
