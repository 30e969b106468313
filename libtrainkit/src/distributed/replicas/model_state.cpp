#include "distributed/replicas/model_state.h"

#include <algorithm>
#include <unordered_map>

#include "distributed/replicas/replica_tools.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {

ModelState::ModelState(const std::vector<std::shared_ptr<torch::nn::Module>>& replicas) {
  for (const auto& module : replicas) {
    Replica& replica = replicas_.emplace_back();
    replica.parts = module->modules();
    replica.parameters = tensors_of(unique_parameters(*module));
    TORCH_CHECK_VALUE(replica.parts.size() == replicas_[0].parts.size(),
                      "the factory made models with different modules");
    TORCH_CHECK_VALUE(replica.parameters.size() == replicas_[0].parameters.size(),
                      "the factory made models with different parameters");
  }
  for (const auto& part : replicas[0]->named_modules()) parts_.push_back(part.key());
  for (const auto& [name, parameter] : unique_parameters(*replicas[0])) parameters_.push_back(name);
  for (const auto& part : replicas_[0].parts) modes_.push_back(part->is_training() ? 1 : 0);
  for (const at::Tensor& parameter : replicas_[0].parameters) trained_.push_back(parameter.requires_grad() ? 1 : 0);
  follow();
}

ModelState::Change ModelState::follow() {
  Change change;
  const Replica& first = replicas_[0];
  for (size_t i = 0; i < modes_.size(); ++i) {
    const char mode = first.parts[i]->is_training() ? 1 : 0;
    change.modes |= std::exchange(modes_[i], mode) != mode;
  }
  for (size_t p = 0; p < trained_.size(); ++p) {
    const char trained = first.parameters[p].requires_grad() ? 1 : 0;
    if (std::exchange(trained_[p], trained) != trained && !change.parameter) change.parameter = p;
  }
  if (change.parameter) ++version_;
  for (size_t r = 1; r < replicas_.size(); ++r) {
    const Replica& replica = replicas_[r];
    for (size_t i = 0; i < modes_.size(); ++i) {
      if (replica.parts[i]->is_training() == (modes_[i] != 0)) continue;
      apply_modes(replica);
      break;
    }
    for (size_t p = 0; p < trained_.size(); ++p) {
      const at::Tensor& parameter = replica.parameters[p];
      if (parameter.requires_grad() != (trained_[p] != 0)) parameter.set_requires_grad(trained_[p] != 0);
    }
  }
  return change;
}

void ModelState::apply_modes(const Replica& replica) const {
  for (size_t i = 0; i < modes_.size(); ++i) replica.parts[i]->train(modes_[i] != 0);  // a module before its parts
}

std::vector<std::pair<std::string, at::Tensor>> ModelState::trained(size_t replica) const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (size_t p = 0; p < trained_.size(); ++p) {
    if (trained_[p] != 0) named.emplace_back(parameters_[p], replicas_[replica].parameters[p]);
  }
  return named;
}

std::vector<DigestField> ModelState::fields() const {
  std::vector<DigestField> fields;
  for (size_t p = 0; p < trained_.size(); ++p) {
    fields.push_back({"requires_grad of " + parameters_[p], trained_[p] != 0 ? "true" : "false"});
  }
  for (size_t i = 0; i < modes_.size(); ++i) {
    fields.push_back({"mode of " + (parts_[i].empty() ? "the model" : parts_[i]), modes_[i] != 0 ? "train" : "eval"});
  }
  return fields;
}

absl::Status ModelState::sharding_error(size_t parameter) const {
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "train.frozen",
                    .field = parameters_[parameter],
                    .problem = "was frozen or unfrozen after the training state was divided (sharding)",
                    .got = trained_[parameter] != 0 ? "requires_grad true" : "requires_grad false",
                    .hint = "set requires_grad in the model factory, and create a new DeviceReplicator and optimizer "
                            "for each phase of training; without sharding it can change between steps"},
                   absl::StatusCode::kInvalidArgument);
}

absl::Status check_separate(const std::vector<std::shared_ptr<torch::nn::Module>>& replicas) {
  std::unordered_map<const void*, size_t> owners;  // of modules and of memory
  std::string shared;
  const auto add = [&](const void* item, size_t replica, const std::string& name) {
    if (owners.emplace(item, replica).first->second != replica && shared.empty()) shared = name;
  };
  for (size_t r = 0; r < replicas.size(); ++r) {
    for (const auto& part : replicas[r]->named_modules()) {
      add(part.value().get(), r, part.key().empty() ? "the model" : "module " + part.key());
    }
    const auto add_memory = [&](const auto& named, const char* kind) {
      for (const auto& [name, tensor] : named) {
        if (tensor.has_storage() && tensor.storage().nbytes() > 0) {
          add(tensor.storage().unsafeGetStorageImpl(), r, kind + name);
        }
      }
    };
    add_memory(unique_parameters(*replicas[r]), "parameter ");
    add_memory(unique_buffers(*replicas[r]), "buffer ");
  }
  if (shared.empty()) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "train.shared_model",
                    .field = "the model factory",
                    .problem = "returned models that share modules or tensors",
                    .got = shared,
                    .expected = "a new model from each call, one per replica",
                    .hint = "construct the model inside the factory instead of capturing it"},
                   absl::StatusCode::kInvalidArgument);
}

}  // namespace trainkit::detail
