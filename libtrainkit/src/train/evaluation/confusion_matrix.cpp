#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <limits>
#include <mutex>

#include "trainkit/train/evaluate.h"

namespace trainkit {

namespace {

/// Throws c10::IndexError for a class out of range. For tensors on the CPU; elsewhere the host would have to wait.
void check_classes(const at::Tensor& truth, const at::Tensor& predicted, int64_t num_classes) {
  const auto true_classes = truth.accessor<int64_t, 1>(), predicted_classes = predicted.accessor<int64_t, 1>();
  for (int64_t row = 0; row < truth.size(0); ++row) {
    const int64_t right = true_classes[row], found = predicted_classes[row];
    if (right < 0) continue;
    TORCH_CHECK_INDEX(right < num_classes, "ConfusionMatrix: true class ", right, " of row ", row,
                      " is out of range for ", num_classes, " classes");
    TORCH_CHECK_INDEX(found >= 0 && found < num_classes, "ConfusionMatrix: predicted class ", found, " of row ", row,
                      " is out of range for ", num_classes, " classes");
  }
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(int64_t num_classes, at::Device device) : num_classes_(num_classes) {
  TORCH_CHECK_VALUE(num_classes >= 1, "num_classes must be >= 1, got ", num_classes);
  cells_ = at::zeros({num_classes * num_classes + 1}, at::TensorOptions(at::kLong).device(device));
}

void ConfusionMatrix::add(const at::Tensor& truth, const at::Tensor& predicted) {
  TORCH_CHECK_VALUE(truth.dim() == 1 && truth.sizes() == predicted.sizes() && truth.scalar_type() == at::kLong &&
                        predicted.scalar_type() == at::kLong,
                    "expected true and predicted classes (n) int64, got ", truth.sizes(), " and ", predicted.sizes());
  const c10::NoGradGuard no_grad;
  if (truth.is_cpu() && predicted.is_cpu()) check_classes(truth, predicted, num_classes_);
  const std::lock_guard lock(mutex_);
  const at::Tensor row = truth.to(cells_.device(), /*non_blocking=*/true);
  const at::Tensor column = predicted.to(cells_.device(), /*non_blocking=*/true);
  // An out-of-range class would be counted in the cell of another pair. It gets an index that no cell has instead, so
  // scatter_add_ reports it.
  const int64_t beyond = cells_.numel();
  const at::Tensor valid = (row < num_classes_).logical_and_(column >= 0).logical_and_(column < num_classes_);
  const at::Tensor inside = at::where(valid, row * num_classes_ + column, beyond);
  cells_.scatter_add_(0, at::where(row < 0, beyond - 1, inside), at::ones_like(row));
}

void ConfusionMatrix::add(const ConfusionMatrix& other) {
  TORCH_CHECK_VALUE(other.num_classes_ == num_classes_, "expected ", num_classes_, " classes, got ",
                    other.num_classes_);
  const std::unique_lock lock(mutex_);
  const auto other_lock = &other == this ? std::unique_lock<std::mutex>() : std::unique_lock<std::mutex>(other.mutex_);
  cells_.add_(other.cells_.to(cells_.device()));
}

absl::Status ConfusionMatrix::add_other_ranks(ProcessGroup& group) {
  return group.all_reduce(cells_, "all_reduce(confusion matrix)");
}

at::Tensor ConfusionMatrix::counts() const {
  const std::lock_guard lock(mutex_);
  return cells_.narrow(0, 0, num_classes_ * num_classes_)
      .to(at::kCPU, at::kLong, false, /*copy=*/true)
      .view({num_classes_, num_classes_});
}

ClassificationScores classification_scores(const at::Tensor& counts) {
  TORCH_CHECK_VALUE(
      counts.dim() == 2 && counts.size(0) == counts.size(1) && counts.scalar_type() == at::kLong && counts.is_cpu(),
      "counts: expected (C, C) int64 on the CPU");
  const at::Tensor table = counts.contiguous();
  const auto cell = table.accessor<int64_t, 2>();
  const int64_t classes = table.size(0);
  const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0.0; };
  ClassificationScores scores;
  int64_t right = 0, present = 0, met = 0;
  double by_chance = 0;
  for (int64_t k = 0; k < classes; ++k) {
    int64_t truth = 0, predicted = 0;
    for (int64_t other = 0; other < classes; ++other) {
      truth += cell[k][other];
      predicted += cell[other][k];
    }
    const auto hits = static_cast<double>(cell[k][k]);
    const auto both = static_cast<double>(truth + predicted);
    scores.classes.push_back({.rows = truth,
                              .precision = share(hits, static_cast<double>(predicted)),
                              .recall = share(hits, static_cast<double>(truth)),
                              .f1 = share(2 * hits, both)});
    scores.rows += truth;
    right += cell[k][k];
    present += truth > 0;
    scores.aa += scores.classes.back().recall;
    scores.weighted_f1 += scores.classes.back().f1 * static_cast<double>(truth);
    scores.macro_f1 += scores.classes.back().f1;
    met += both > 0;
    by_chance += static_cast<double>(truth) * static_cast<double>(predicted);
  }
  const auto rows = static_cast<double>(scores.rows);
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  scores.oa = scores.rows > 0 ? static_cast<double>(right) / rows : kNaN;
  scores.aa = present > 0 ? scores.aa / static_cast<double>(present) : kNaN;
  scores.weighted_f1 = scores.rows > 0 ? scores.weighted_f1 / rows : kNaN;
  scores.macro_f1 = met > 0 ? scores.macro_f1 / static_cast<double>(met) : kNaN;
  const double expected = by_chance / (rows * rows);
  scores.kappa = expected < 1 ? (scores.oa - expected) / (1 - expected) : kNaN;
  return scores;
}

}  // namespace trainkit
