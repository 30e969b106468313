#pragma once
/// Evaluation mode of a module for a scope.

#include <torch/nn/module.h>

#include <memory>
#include <vector>

namespace trainkit {

namespace detail {

/// Sets a module and all parts of it at the end to the modes that they have at the beginning.
class KeptModes {
 public:
  explicit KeptModes(torch::nn::Module& module)
      : module_(module), was_training_(module.is_training()), parts_(module.modules(/*include_self=*/false)) {
    for (const auto& part : parts_) parts_were_training_.push_back(part->is_training());
  }
  ~KeptModes() {
    if (!have_changed()) return;
    module_.train(was_training_);  // a module before its parts
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i]->train(parts_were_training_[i]);
  }
  KeptModes(const KeptModes&) = delete;
  KeptModes& operator=(const KeptModes&) = delete;

  bool have_changed() const {
    if (module_.is_training() != was_training_) return true;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i]->is_training() != parts_were_training_[i]) return true;
    }
    return false;
  }

 private:
  torch::nn::Module& module_;  // may be on the stack
  bool was_training_;
  std::vector<std::shared_ptr<torch::nn::Module>> parts_;
  std::vector<bool> parts_were_training_;
};

}  // namespace detail

/// Sets a module and all parts of it to evaluation mode, and at the end of the scope each of them to its own mode
/// again: parts that were kept in evaluation mode during training stay there. The module must outlive it.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : modes_(module) { module.eval(); }

 private:
  detail::KeptModes modes_;
};

}  // namespace trainkit
