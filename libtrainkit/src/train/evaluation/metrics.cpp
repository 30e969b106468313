#include "trainkit/train/metrics.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "train/evaluation/replica_scores.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

at::Tensor float64_zeros(int64_t count, at::Device device) {
  return at::zeros({count}, at::TensorOptions(at::kDouble).device(device));
}

/// Returns the sizes without dimensions of size 1, which do not tell what belongs to what.
std::vector<int64_t> squeezed(at::IntArrayRef sizes) {
  std::vector<int64_t> all(sizes.begin(), sizes.end());
  std::erase(all, 1);
  return all;
}

void check_sizes(const char* metric, const at::Tensor& outputs, const at::Tensor& targets) {
  TORCH_CHECK_VALUE(squeezed(outputs.sizes()) == squeezed(targets.sizes()), metric, ": outputs ", outputs.sizes(),
                    " and targets ", targets.sizes(), " differ in size");
}

/// Returns the classes as int64; 2^62, which no class is, for a number that is no integer.
at::Tensor classes_of(const at::Tensor& targets) {
  if (!targets.is_floating_point()) return targets.to(at::kLong);
  const at::Tensor numbers = targets.to(at::kDouble);
  return at::where(numbers == numbers.round(), numbers.clamp(-1, 1e15).to(at::kLong), int64_t{1} << 62);
}

}  // namespace

MeanMetric::MeanMetric(std::string name, std::string weight_field, at::Device device)
    : name_(std::move(name)), weight_field_(std::move(weight_field)), sums_(float64_zeros(2, device)) {}

void MeanMetric::add(const at::Tensor& values, const at::Tensor& weights) {
  const c10::NoGradGuard no_grad;
  const at::Tensor numbers = values.detach().to(at::kDouble);
  const at::Tensor weight =
      weights.defined() ? weights.detach().to(numbers.options()).expand_as(numbers) : at::ones_like(numbers);
  const at::Tensor part = at::stack({at::where(weight == 0, 0.0, numbers * weight).sum(), weight.sum()});
  sums_.add_(part.to(sums_.device(), /*non_blocking=*/true));
}

void MeanMetric::update(const at::Tensor& outputs, const Batch& rows) {
  if (weight_field_.empty()) return add(outputs);
  // One weight per row: (B) becomes (B, 1, ...).
  std::vector<int64_t> sizes(static_cast<size_t>(outputs.dim()), 1);
  if (!sizes.empty()) sizes[0] = rows.size();
  add(outputs, rows[weight_field_].reshape(sizes));
}

std::unique_ptr<Score> MeanMetric::empty_on(at::Device device) const {
  return std::make_unique<MeanMetric>(name_, weight_field_, device);
}

Metrics MeanMetric::result() const {
  const at::Tensor sums = sums_.cpu();
  const auto* const s = sums.const_data_ptr<double>();
  return {{name_, s[1] != 0 ? s[0] / s[1] : kNaN}};
}

// Note [Merged spread]
// ~~~~~~~~~~~~~~~~~~~~
// The spread of the targets, the sum of their squared distances from their mean, is not the difference of two sums of
// squares: targets around 1e9 would leave nothing of it. Two parts (n, mean, spread) have the spread
//   spread_a + spread_b + (mean_a - mean_b)^2 n_a n_b / (n_a + n_b)
// (Chan, Golub and LeVeque 1979). The order of the parts changes the result by rounding alone.

namespace {

enum RegressionSum : int64_t { kElements, kMean, kSpread, kSquares, kAbsolutes, kSums };

/// Adds `part` to `all`, both (kSums) float64 on one device. A part without elements changes nothing.
void merge_sums(const at::Tensor& all, const at::Tensor& part) {
  const at::Tensor own = all[kElements].clone(), theirs = part[kElements], total = (own + theirs).clamp_min(1);
  const at::Tensor distance = part[kMean] - all[kMean];
  all[kMean].add_(distance * theirs / total);
  all[kSpread].add_(part[kSpread] + distance * distance * own * theirs / total);
  all[kElements].add_(theirs);
  all.slice(0, kSquares).add_(part.slice(0, kSquares));
}

}  // namespace

RegressionMetrics::RegressionMetrics(RegressionMetricsOptions options, at::Device device)
    : options_(std::move(options)), sums_(float64_zeros(kSums, device)) {}

void RegressionMetrics::add(const at::Tensor& predictions, const at::Tensor& targets) {
  check_sizes("RegressionMetrics", predictions, targets);
  if (targets.numel() == 0) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor truth = targets.detach().to(at::kDouble).reshape(-1);
  const at::Tensor error = predictions.detach().to(truth.options()).reshape(-1) - truth;
  const at::Tensor mean = truth.mean(), distance = truth - mean;
  const at::Tensor count = at::full({}, static_cast<double>(truth.numel()), truth.options());
  const at::Tensor part = at::stack({count, mean, distance.square().sum(), error.square().sum(), error.abs().sum()});
  merge_sums(sums_, part.to(sums_.device(), /*non_blocking=*/true));
}

void RegressionMetrics::update(const at::Tensor& outputs, const Batch& rows) {
  add(outputs, rows[options_.target_field]);
}

std::unique_ptr<Score> RegressionMetrics::empty_on(at::Device device) const {
  return std::make_unique<RegressionMetrics>(options_, device);
}

void RegressionMetrics::merge(const Score& other) {
  const c10::InferenceMode inference;
  merge_sums(sums_, other.sums().at(0).to(sums_.device()));
}

absl::Status RegressionMetrics::merge_ranks(ProcessGroup& group) {
  const c10::InferenceMode inference;
  constexpr char kWhat[] = "all_reduce(score)";
  const at::Tensor means = at::stack({sums_[kElements], sums_[kElements] * sums_[kMean]});
  TRAINKIT_RETURN_IF_ERROR(group.all_reduce(means, kWhat));
  const at::Tensor mean = means[1] / means[0].clamp_min(1), distance = sums_[kMean] - mean;
  const at::Tensor added = sums_.clone();
  added[kSpread].add_(distance * distance * sums_[kElements]);
  TRAINKIT_RETURN_IF_ERROR(group.all_reduce(added, kWhat));
  sums_.copy_(added);
  sums_[kMean].copy_(mean);
  return absl::OkStatus();
}

Metrics RegressionMetrics::result() const {
  const at::Tensor sums = sums_.cpu();
  const auto* const s = sums.const_data_ptr<double>();
  const double count = s[kElements];
  // Equal targets have a spread of rounding errors.
  const bool varies = std::sqrt(s[kSpread] / count) > 1e-14 * std::abs(s[kMean]);
  return {{options_.prefix + "mae", s[kAbsolutes] / count},
          {options_.prefix + "rmse", std::sqrt(s[kSquares] / count)},
          {options_.prefix + "r2", varies ? 1 - s[kSquares] / s[kSpread] : kNaN}};
}

ClassificationMetrics::ClassificationMetrics(ClassificationMetricsOptions options, at::Device device)
    : options_(std::move(options)),
      matrix_(options_.classes, device),
      nan_rows_(at::zeros({}, at::TensorOptions(at::kLong).device(device))) {
  TORCH_CHECK_VALUE(options_.average != ClassificationMetricsOptions::Average::kBinary || options_.classes == 2,
                    "ClassificationMetrics: Average::kBinary needs 2 classes, got ", options_.classes);
}

void ClassificationMetrics::add(const at::Tensor& outputs, const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  const at::Tensor found = outputs.detach();
  const bool is_scores = found.is_floating_point() && found.dim() == targets.dim() + 1 && found.dim() >= 2 &&
                         (found.size(1) == options_.classes && options_.classes > 1);
  at::Tensor classes = found, nan;
  if (is_scores) {
    classes = found.argmax(1);
    nan = found.isnan().any(1);
  } else if (found.is_floating_point()) {
    TORCH_CHECK_VALUE(options_.classes == 2, "ClassificationMetrics: outputs ", found.sizes(), " and targets ",
                      targets.sizes(), ": expected scores (B, ", options_.classes, ", ...) and targets (B, ...)");
    classes = found > options_.threshold;
    nan = found.isnan();
  }
  check_sizes("ClassificationMetrics", classes, targets);
  const at::Tensor truth = classes_of(targets.detach()).reshape(-1);
  if (nan.defined()) {
    const at::Tensor count = nan.reshape(-1).logical_and_(truth >= 0).sum();
    nan_rows_.add_(count.to(nan_rows_.device(), /*non_blocking=*/true));
  }
  matrix_.add(truth, classes.to(at::kLong).reshape(-1));
}

void ClassificationMetrics::update(const at::Tensor& outputs, const Batch& rows) {
  add(outputs, rows[options_.target_field]);
}

std::unique_ptr<Score> ClassificationMetrics::empty_on(at::Device device) const {
  return std::make_unique<ClassificationMetrics>(options_, device);
}

Metrics ClassificationMetrics::result() const {
  using Average = ClassificationMetricsOptions::Average;
  const ClassificationScores scores = classification_scores(matrix_.counts());
  const bool is_number = scores.rows > 0 && nan_rows_.item<int64_t>() == 0;
  ClassScore all;
  double sum = 0;
  const auto add = [&](const ClassScore& one, double weight) {
    all.precision += one.precision * weight;
    all.recall += one.recall * weight;
    all.f1 += one.f1 * weight;
    sum += weight;
  };
  switch (options_.average) {
    case Average::kBinary:
      add(scores.classes[1], 1);
      break;
    case Average::kMicro:
      add({.precision = scores.oa, .recall = scores.oa, .f1 = scores.oa}, 1);
      break;
    case Average::kMacro: {
      const at::Tensor counts = matrix_.counts();
      const at::Tensor present = counts.sum(0) + counts.sum(1);
      for (int64_t k = 0; k < options_.classes; ++k) {
        add(scores.classes[static_cast<size_t>(k)], present[k].item<int64_t>() > 0 ? 1 : 0);
      }
      break;
    }
    case Average::kWeighted:
      for (const ClassScore& one : scores.classes) add(one, static_cast<double>(one.rows));
  }
  const auto value = [&](double score) { return is_number ? score : kNaN; };
  return {{options_.prefix + "accuracy", value(scores.oa)},
          {options_.prefix + "precision", value(all.precision / sum)},
          {options_.prefix + "recall", value(all.recall / sum)},
          {options_.prefix + "f1", value(all.f1 / sum)}};
}

AUROC::AUROC(AUROCOptions options, at::Device device) : options_(std::move(options)), device_(device) {}

void AUROC::add(const at::Tensor& outputs, const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  at::Tensor found = outputs.detach();
  if (found.dim() == targets.dim() + 1 && found.size(-1) == 2) found = found.select(-1, 1) - found.select(-1, 0);
  check_sizes("AUROC", found, targets);
  // Copies: the loader uses the memory of a batch again.
  const bool is_wide = found.scalar_type() == at::kDouble || !found.is_floating_point();
  outputs_.push_back(found.to(device_, is_wide ? at::kDouble : at::kFloat, false, /*copy=*/true).reshape(-1));
  const at::Tensor truth = targets.detach();
  const at::Tensor known = at::where(truth == 1, 1, at::where(truth == 0, 0, at::where(truth < 0, -1, 2)));
  targets_.push_back(known.to(device_, at::kChar).reshape(-1));
}

void AUROC::update(const at::Tensor& outputs, const Batch& rows) { add(outputs, rows[options_.target_field]); }

std::unique_ptr<Score> AUROC::empty_on(at::Device device) const { return std::make_unique<AUROC>(options_, device); }

void AUROC::merge(const Score& other) {
  const auto& rows = dynamic_cast<const AUROC&>(other);
  const auto copy = [&](const std::vector<at::Tensor>& from, std::vector<at::Tensor>& to) {
    if (!from.empty()) to.push_back(at::cat(from).to(device_));
  };
  const std::vector<at::Tensor> outputs = rows.outputs_, targets = rows.targets_;  // `other` may be this
  copy(outputs, outputs_);
  copy(targets, targets_);
}

absl::Status AUROC::merge_ranks(ProcessGroup& group) {
  const c10::InferenceMode inference;
  constexpr char kWhat[] = "all_reduce(score)";
  const auto ranks = group.world_size();
  const at::Tensor counts = at::zeros({ranks}, at::kLong);
  int64_t own = 0;
  for (const at::Tensor& targets : targets_) own += targets.numel();
  counts[group.rank()] = own;
  TRAINKIT_RETURN_IF_ERROR(group.all_reduce(counts, kWhat));
  const int64_t begin = counts.narrow(0, 0, group.rank()).sum().item<int64_t>();
  const at::Tensor all = at::zeros({2, counts.sum().item<int64_t>()}, at::kDouble);
  if (own > 0) {
    all[0].narrow(0, begin, own).copy_(at::cat(outputs_));
    all[1].narrow(0, begin, own).copy_(at::cat(targets_));
  }
  if (all.numel() > 0) TRAINKIT_RETURN_IF_ERROR(group.all_reduce(all, kWhat));
  outputs_ = {all[0].to(device_)};
  targets_ = {all[1].to(device_, at::kChar)};
  return absl::OkStatus();
}

Metrics AUROC::result() const {
  const auto named = [&](double value) { return Metrics{{options_.name, value}}; };
  if (targets_.empty()) return named(kNaN);
  const at::Tensor all = at::cat(targets_).cpu(), counted = all >= 0;
  TORCH_CHECK_VALUE((all <= 1).all().item<bool>(), "AUROC: a class is neither 0 nor 1");
  const at::Tensor found = at::cat(outputs_).cpu().to(at::kDouble).index({counted});
  const auto [sorted, order] = found.sort();
  const at::Tensor classes = all.index({counted}).index({order});
  if (found.isnan().any().item<bool>()) return named(kNaN);
  const auto* const output = sorted.const_data_ptr<double>();
  const auto* const is = classes.const_data_ptr<int8_t>();
  const int64_t rows = classes.numel();
  // Twice the number of pairs in the right order: exact up to 2^31 rows, whose pairs are fewer than 2^62.
  int64_t positives = 0, negatives = 0;
  uint64_t pairs = 0;
  for (int64_t begin = 0, end = 0; begin < rows; begin = end) {
    int64_t positive = 0;
    for (; end < rows && output[end] == output[begin]; ++end) positive += is[end];
    const int64_t negative = end - begin - positive;
    pairs += static_cast<uint64_t>(positive) * static_cast<uint64_t>(2 * negatives + negative);
    positives += positive;
    negatives += negative;
  }
  if (positives == 0 || negatives == 0) return named(kNaN);
  return named(static_cast<double>(pairs) / 2 / (static_cast<double>(positives) * static_cast<double>(negatives)));
}

MetricCollection::MetricCollection(const std::vector<std::shared_ptr<const Score>>& scores) {
  std::set<std::string> names;
  for (const auto& score : scores) {
    for (const auto& [name, value] : score->result()) {
      TORCH_CHECK_VALUE(names.insert(name).second, "MetricCollection: two scores have the name ", name,
                        "; give one a prefix or another name");
    }
    scores_.push_back(std::make_shared<detail::ReplicaScores>(score));
  }
}

void MetricCollection::update(const at::Tensor& outputs, const Batch& batch) const {
  for (const auto& score : scores_) score->update(outputs, batch);
}

absl::Status MetricCollection::add_scores(ProcessGroup* group, Metrics& metrics) const {
  for (const auto& part : scores_) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::unique_ptr<Score> score, part->take(group));
    for (const auto& [name, value] : score->result()) metrics[name] = value;
  }
  return absl::OkStatus();
}

}  // namespace trainkit
