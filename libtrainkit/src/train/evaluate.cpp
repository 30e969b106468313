#include "trainkit/train/evaluate.h"

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <vector>

#include "trainkit/amp/autocast.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Puts a module into evaluation mode for a scope.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : module_(module), was_training_(module.is_training()) {
    if (was_training_) module_.eval();
  }
  ~EvaluationMode() {
    if (was_training_) module_.train();
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
};

/// Weighted sums on the device.
class Sums {
 public:
  void add(const LossOutput& output, double weight) {
    weight_ += weight;
    add_one(0, "loss", output.loss, weight);
    for (size_t i = 0; i < output.metrics.size(); ++i) {
      add_one(i + 1, output.metrics[i].first, output.metrics[i].second, weight);
    }
  }
  double weight() const { return weight_; }
  Metrics means() const {
    Metrics metrics;
    for (const auto& [name, sum] : sums_) metrics[name] = sum.item<double>() / weight_;
    return metrics;
  }

 private:
  void add_one(size_t at, const std::string& name, const at::Tensor& value, double weight) {
    if (sums_.size() == at)
      sums_.emplace_back(name, at::zeros({}, value.options().dtype(at::kDouble).requires_grad(false)));
    TORCH_CHECK(at < sums_.size() && sums_[at].first == name, "metric '", name, "' is not returned for every batch");
    sums_[at].second.add_(value.to(at::kDouble), weight);
  }

  std::vector<std::pair<std::string, at::Tensor>> sums_;
  double weight_ = 0;
};

}  // namespace

absl::StatusOr<Metrics> evaluate(DeviceReplicator& devices, Prefetcher& loader, const LossFunction& loss,
                                 Precision precision) {
  const c10::InferenceMode inference;
  const EvaluationMode mode(*devices.module());
  Sums sums;
  loader.seek(0, 0);
  while (true) {
    TRAINKIT_ASSIGN_OR_RETURN(std::optional<Batch> batch, loader.next());
    if (!batch) break;
    std::optional<AutocastGuard> autocast;
    if (precision != Precision::kFp32) {
      autocast.emplace(devices.device(), precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
    }
    const LossOutput output = loss(*devices.module(), *batch);
    sums.add(output, output.weight > 0 ? output.weight : static_cast<double>(batch->size()));
  }
  if (sums.weight() == 0) {
    return to_status({.exit_code = ExitCode::kData, .id = "data.empty", .problem = "there is no row to evaluate"},
                     absl::StatusCode::kInvalidArgument);
  }
  return sums.means();
}

}  // namespace trainkit
