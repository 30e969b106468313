#pragma once
// Evaluation mode for a scope.

#include <torch/nn/module.h>

#include <memory>
#include <vector>

namespace trainkit::detail {

/// Sets a module and all parts of it to evaluation mode, and at the end each of them to its own mode again.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : parts_(module.modules()) {
    for (const auto& part : parts_) was_training_.push_back(part->is_training());
    module.eval();
  }
  ~EvaluationMode() {
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i]->train(was_training_[i]);  // a module before its parts
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> parts_;
  std::vector<bool> was_training_;
};

}  // namespace trainkit::detail
