#pragma once
/// What the rows of a regression add up to.

#include <memory>

#include "trainkit/tasks/regression.h"

namespace trainkit::detail {

/// Sums of a regression, in float64: rows, targets and errors in the target's units.
class RegressionScore final : public Score {
 public:
  explicit RegressionScore(RegressionOptions options, at::Device device = at::kCPU);
  std::unique_ptr<Score> empty_on(at::Device device) const override {
    return std::make_unique<RegressionScore>(options_, device);
  }
  void update(const at::Tensor& outputs, const Batch& rows) override;
  std::vector<at::Tensor> sums() const override { return {sums_}; }
  /// "rmse" and "mae" (root of the mean squared error, mean absolute error), "r2" (coefficient of determination; NaN if
  /// all targets are equal). scikit-learn's root_mean_squared_error, mean_absolute_error and r2_score.
  Metrics result() const override;

 private:
  RegressionOptions options_;
  at::Tensor sums_;  // rows, targets - mean, their squares, squared errors, absolute errors
};

}  // namespace trainkit::detail
