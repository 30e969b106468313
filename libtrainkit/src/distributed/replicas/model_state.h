#pragma once
// What the first replica's model decides for all replicas.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/distributed/process_group.h"

namespace trainkit::detail {

// Note [Replicas follow the first one]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// The replicas are one model, and users change the first one, which DeviceReplicator::module() returns: train() or
// eval() of a module, requires_grad of a parameter. follow() applies both to the other replicas. Strategies call it
// when a step begins and before each run; without a change it only reads flags of cached modules and parameters. After
// a change of requires_grad they make their lists of trained parameters, and what reduces them, anew. Ranks each have
// their own first replica: they compare it when it has changed, so that none waits for gradients that another one does
// not compute.

/// Modes of all modules and requires_grad of all parameters of the replicas in this process.
class ModelState {
 public:
  struct Change {
    bool modes = false;
    std::optional<size_t> parameter = std::nullopt;  // the first one whose requires_grad has changed
  };

  /// Keeps the modules. Throws c10::ValueError if the models have different modules or parameters.
  explicit ModelState(const std::vector<std::shared_ptr<torch::nn::Module>>& replicas);

  /// Applies modes and requires_grad of the first replica to the others. Returns what has changed in the first one
  /// since the last call, or since construction.
  Change follow();

  size_t replicas() const { return replicas_.size(); }
  /// Changes with the set of trained parameters.
  int64_t version() const { return version_; }
  /// Modes of the modules at the last follow().
  const std::vector<char>& modes() const { return modes_; }
  /// The parameters of a replica that are trained, with their names, each once.
  std::vector<std::pair<std::string, at::Tensor>> trained(size_t replica) const;
  /// Modes and trained parameters, to compare them with those of other ranks.
  std::vector<DigestField> fields() const;
  /// The error of a parameter that was frozen or unfrozen after the training state was divided (Sharding).
  absl::Status sharding_error(size_t parameter) const;

 private:
  struct Replica {
    std::vector<std::shared_ptr<torch::nn::Module>> parts;
    std::vector<at::Tensor> parameters;
  };
  void apply_modes(const Replica& replica) const;

  std::vector<Replica> replicas_;
  std::vector<std::string> parts_, parameters_;  // names
  std::vector<char> modes_, trained_;
  int64_t version_ = 0;
};

/// Checks that the replicas' models share no module, parameter or buffer. Otherwise every replica would change those of
/// the others.
absl::Status check_separate(const std::vector<std::shared_ptr<torch::nn::Module>>& replicas);

}  // namespace trainkit::detail
