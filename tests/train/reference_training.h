#pragma once
/// A training of PyTorch's, from the file that a script of tests/reference has written.

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/data/prefetcher.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/train/session.h"

namespace trainkit::test {

class ReferenceTraining {
 public:
  explicit ReferenceTraining(const std::string& path) {
    for (auto& [name, tensor] : *WeightFile::open(path).value().tensors()) tensors_.emplace(name, tensor);
  }

  const at::Tensor& operator[](const std::string& name) const { return tensors_.at(name); }

  /// Sets the parameters of `model` to the tensors "<prefix><parameter>", and so their dtype. Buffers stay new.
  template <class Model>
  Model with_weights(Model model, const std::string& prefix) const {
    for (auto& parameter : model->named_parameters()) {
      parameter.value().set_data((*this)[prefix + parameter.key()].clone());
    }
    return model;
  }

  /// Largest difference of a parameter or buffer of `model` to the tensor "<prefix><name>".
  double largest_difference(const torch::nn::Module& model, const std::string& prefix) const {
    double largest = 0;
    const auto compare = [&](const auto& tensors) {
      for (const auto& entry : tensors) {
        const at::Tensor difference = (entry.value().detach() - (*this)[prefix + entry.key()]).abs().max();
        largest = std::max(largest, difference.template item<double>());
      }
    };
    compare(model.named_parameters());
    compare(model.named_buffers());
    return largest;
  }

  /// Rows of the fields "<prefix><field>" in their order.
  std::unique_ptr<Prefetcher> loader(const std::string& prefix, const std::vector<std::string>& fields,
                                     int64_t batch_size) const {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const std::string& field : fields) tensors.emplace_back(field, (*this)[prefix + field]);
    const auto rows = std::make_shared<TensorDataset>(std::move(tensors));
    return Prefetcher::create(rows, SequentialSampler(rows->size()), {.batch_size = batch_size}).value();
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

/// Keeps a metric of every step, or the loss if `name` is empty.
struct StepValues final : Events {
  explicit StepValues(std::vector<std::string> metrics = {}) : names(std::move(metrics)) {}
  absl::Status on_step(int64_t, const StepMetrics& metrics) override {
    if (names.empty()) values.push_back(metrics.loss.item<double>());
    for (const std::string& name : names) {
      for (const auto& [key, value] : metrics.metrics) {
        if (key == name) values.push_back(value.item<double>());
      }
    }
    return absl::OkStatus();
  }
  /// (steps) or (steps, names), float64.
  at::Tensor tensor() const {
    const at::Tensor all = torch::tensor(values, at::kDouble);
    return names.empty() ? all : all.view({-1, static_cast<int64_t>(names.size())});
  }
  std::vector<std::string> names;
  std::vector<double> values;
};

}  // namespace trainkit::test
