#pragma once
// Modes of a module for a scope.

#include <torch/nn/module.h>

#include <memory>
#include <vector>

namespace trainkit::detail {

/// Sets a module and all parts of it at the end to the modes that they have at the beginning.
class KeptModes {
 public:
  explicit KeptModes(torch::nn::Module& module) : parts_(module.modules()) {
    for (const auto& part : parts_) was_training_.push_back(part->is_training());
  }
  ~KeptModes() {
    if (!have_changed()) return;
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i]->train(was_training_[i]);  // a module before its parts
  }
  KeptModes(const KeptModes&) = delete;
  KeptModes& operator=(const KeptModes&) = delete;

  bool have_changed() const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i]->is_training() != was_training_[i]) return true;
    }
    return false;
  }

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> parts_;
  std::vector<bool> was_training_;
};

/// Sets a module and all parts of it to evaluation mode, and at the end each of them to its own mode again.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : modes_(module) { module.eval(); }

 private:
  KeptModes modes_;
};

}  // namespace trainkit::detail
