#pragma once
/// The scores of a regression task.

#include <memory>
#include <vector>

#include "trainkit/tasks/regression.h"
#include "trainkit/train/metrics.h"

namespace trainkit::detail {

/// RegressionMetrics of a model that predicts in deviations: "rmse", "mae" and "r2" in the target's units.
class RegressionScore final : public Score {
 public:
  explicit RegressionScore(RegressionOptions options, at::Device device = at::kCPU);
  std::unique_ptr<Score> empty_on(at::Device device) const override {
    return std::make_unique<RegressionScore>(options_, device);
  }
  void update(const at::Tensor& outputs, const Batch& rows) override;
  std::vector<at::Tensor> sums() const override { return metrics_.sums(); }
  void merge(const Score& other) override { metrics_.merge(other); }
  absl::Status merge_ranks(ProcessGroup& group) override { return metrics_.merge_ranks(group); }
  Metrics result() const override { return metrics_.result(); }

 private:
  RegressionOptions options_;
  RegressionMetrics metrics_;
};

}  // namespace trainkit::detail
