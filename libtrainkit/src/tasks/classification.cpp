#include "trainkit/tasks/classification.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "tasks/classification_results.h"
#include "trainkit/nn/functional.h"

namespace trainkit {
namespace {

/// Class weights on each device that asks for them. Thread-safe.
class ClassWeights {
 public:
  /// An undefined tensor weights all classes alike.
  explicit ClassWeights(at::Tensor weights) {
    if (weights.defined()) copies_.push_back(std::move(weights));
  }
  bool empty() const { return copies_.empty(); }
  at::Tensor on(at::Device device) {
    const std::lock_guard lock(mutex_);
    for (const at::Tensor& copy : copies_) {
      if (copy.device() == device) return copy;
    }
    return copies_.emplace_back(copies_.front().to(device));
  }

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> copies_;
};

class Classification final : public Task {
 public:
  Classification(ModelOutputs outputs, ClassificationOptions options)
      : Task(std::move(outputs),
             std::make_shared<detail::ConfusionScore>(std::ssize(options.labels), options.label_field)),
        options_(std::move(options)),
        weights_(std::make_shared<ClassWeights>(options_.weight_classes ? class_weights(options_.training_counts)
                                                                        : at::Tensor())) {}

  LossOutput loss(const at::Tensor& outputs, const Batch& batch, bool trains) const override {
    const at::Tensor& labels = batch[options_.label_field];
    LossOutput output(trains ? training_loss_of(outputs, labels) : cross_entropy(outputs, labels));
    const c10::NoGradGuard no_grad;
    output.metrics = {{options_.accuracy_key, outputs.argmax(1).eq(labels).to(at::kFloat).mean()}};
    return output;
  }
  at::Tensor prediction(const at::Tensor& outputs) const override {
    return options_.keep_classes_only ? outputs.argmax(1) + 1 : at::softmax(outputs, 1, at::kFloat);
  }
  at::Tensor truth(const Batch& rows) const override { return rows[options_.label_field]; }
  std::vector<std::string> prediction_columns() const override { return detail::prediction_columns(options_); }
  std::vector<std::string> prediction_fields(const at::Tensor& predictions, int64_t row) const override {
    return detail::prediction_fields(options_, predictions, row);
  }
  std::vector<ScoreName> score_names() const override { return options_.scores; }
  std::string monitor() const override { return options_.monitor; }
  std::string row_word() const override { return options_.row_word; }

  Metrics scores(const Score& score, bool is_test) const override {
    const Metrics all = all_scores(score);
    std::vector<std::string> keys = options_.validation_scores;
    if (is_test) keys.clear();
    for (const ScoreName& name : options_.scores) {
      if (is_test) keys.push_back(name.key);
    }
    Metrics metrics;
    for (const std::string& key : keys) {
      if (const auto found = all.find(key); found != all.end()) metrics.insert(*found);
    }
    return with_recalls(std::move(metrics), score);
  }
  absl::Status write(const std::string& folder, const TestedRows& tested, ResultPage& page) const override {
    return detail::write_classification(folder, *this, options_, tested, page);
  }
  std::string table(const TestedRows& tested) const override { return detail::class_table(options_, tested); }

 private:
  at::Tensor training_loss_of(const at::Tensor& outputs, const at::Tensor& labels) const {
    if (weights_->empty() && options_.label_smoothing == 0) return cross_entropy(outputs, labels);
    std::optional<at::Tensor> weights;
    if (!weights_->empty()) weights = weights_->on(outputs.device()).to(outputs.scalar_type());
    return at::cross_entropy_loss(outputs, labels, weights, at::Reduction::Sum, -100, options_.label_smoothing) /
           static_cast<double>(outputs.size(0));
  }
  Metrics all_scores(const Score& score) const {
    Metrics all = score.result();
    auto accuracy = all.extract("accuracy");
    accuracy.key() = options_.accuracy_key;
    all.insert(std::move(accuracy));
    const auto& counts = options_.training_counts;
    if (counts.empty()) return all;
    const ClassificationScores scores = detail::scores_of(score);
    const auto most = std::max_element(counts.begin(), counts.end()) - counts.begin();
    all["majority"] = static_cast<double>(scores.classes[static_cast<size_t>(most)].rows) /
                      static_cast<double>(std::max<int64_t>(scores.rows, 1));
    return all;
  }
  Metrics with_recalls(Metrics metrics, const Score& score) const {
    if (!options_.recalls) return metrics;
    const ClassificationScores scores = detail::scores_of(score);
    for (size_t k = 0; k < scores.classes.size(); ++k) {
      if (scores.classes[k].rows > 0) metrics["recall." + options_.labels[k]] = scores.classes[k].recall;
    }
    return metrics;
  }

  ClassificationOptions options_;
  std::shared_ptr<ClassWeights> weights_;
};

}  // namespace

Metrics detail::ConfusionScore::result() const {
  const ClassificationScores scores = classification_scores(matrix_.counts());
  return {{"accuracy", scores.oa},
          {"aa", scores.aa},
          {"kappa", scores.kappa},
          {"weighted_f1", scores.weighted_f1},
          {"macro_f1", scores.macro_f1}};
}

std::shared_ptr<Task> detail::make_classification(ModelOutputs outputs, ClassificationOptions options) {
  if (options.labels.empty()) {
    for (int64_t k = 0; k < options.classes; ++k) options.labels.push_back(std::to_string(k));
  }
  TORCH_CHECK_VALUE(!options.labels.empty(), "classification: neither labels nor classes given");
  return std::make_shared<Classification>(std::move(outputs), std::move(options));
}

at::Tensor class_weights(const std::vector<int64_t>& counts) {
  const auto present =
      static_cast<double>(std::count_if(counts.begin(), counts.end(), [](int64_t n) { return n > 0; }));
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  std::vector<float> weights;
  weights.reserve(counts.size());
  for (const int64_t count : counts) {
    weights.push_back(count > 0 ? static_cast<float>(total / (present * static_cast<double>(count))) : 0.0F);
  }
  return at::tensor(weights);
}

}  // namespace trainkit
