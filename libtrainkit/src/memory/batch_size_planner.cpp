#include "trainkit/memory/batch_size_planner.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "memory/caching_allocator_model.h"
#include "memory/scalable_trace.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

constexpr double kTolerance = 0.005;

double relative_error(int64_t predicted, int64_t counted) {
  return counted == 0 ? 0 : std::abs(static_cast<double>(predicted - counted)) / static_cast<double>(counted);
}

}  // namespace

BatchShare share_batch(int64_t total, int64_t devices) {
  TORCH_CHECK_VALUE(total >= 1 && devices >= 1, "share_batch: total and devices must be >= 1, got ", total, " and ",
                    devices);
  const int64_t share = std::max<int64_t>(1, total / devices);
  return {.per_device = share, .lost = total - share * devices};
}

absl::StatusOr<MemoryEstimate> MemoryEstimate::create(const Record& record, int64_t max_batch_size) {
  // Do not start at one row: kernels have special cases for it.
  int64_t small = max_batch_size >= 8 ? 2 : 1, large = 2 * small, check = 4 * small;
  TORCH_CHECK_VALUE(max_batch_size >= 4, "max_batch_size must be >= 4, got ", max_batch_size);
  TRAINKIT_ASSIGN_OR_RETURN(MemoryTrace first, record(small));
  TRAINKIT_ASSIGN_OR_RETURN(MemoryTrace second, record(large));
  std::optional<MemoryEstimate> best;
  absl::Status differs;
  for (;; small *= 2, large *= 2, check *= 2) {
    TRAINKIT_ASSIGN_OR_RETURN(MemoryTrace third, record(check));
    auto scalable = ScalableTrace::create(first, small, second, large);
    differs = scalable.status();
    if (scalable.ok()) {
      MemoryEstimate estimate(std::make_shared<const ScalableTrace>(*std::move(scalable)));
      estimate.check_batch_size_ = check;
      estimate.check_error_ =
          relative_error(estimate.trace(check).peak().total(), third.without(MemoryClass::kWorkspace).peak().total());
      if (!best || estimate.check_error_ <= best->check_error_) best = std::move(estimate);
      if (best->check_error_ <= kTolerance) return *std::move(best);
    }
    if (2 * check > max_batch_size) break;
    first = std::move(second);
    second = std::move(third);
  }
  if (!best) return differs;
  return *std::move(best);
}

MemoryTrace MemoryEstimate::trace(int64_t batch_size) const {
  return with_kept(trace_->at(batch_size).without(MemoryClass::kWorkspace), batch_size);
}

// Kept micro-batches are never freed, so they are part of every later moment of the step, the peak included. Their
// blocks follow all others here and are allocated first.
MemoryTrace MemoryEstimate::with_kept(MemoryTrace trace, int64_t batch_size) const {
  std::vector<int32_t> events;
  for (size_t kind = 0; kind < kMemoryClasses; ++kind) {
    const int64_t bytes = kept_ == 0 ? 0 : kept_bytes_.by_class[kind] * batch_size / kept_rows_;
    for (int64_t i = 0; i < kept_ && bytes > 0; ++i) {
      trace.blocks.push_back({.bytes = bytes, .kind = static_cast<MemoryClass>(kind)});
      events.push_back(static_cast<int32_t>(trace.blocks.size()));
    }
  }
  trace.events.insert(trace.events.begin(), events.begin(), events.end());
  return trace;
}

MemoryPrediction MemoryEstimate::predict(int64_t batch_size) const {
  const MemoryTrace trace = this->trace(batch_size);
  return {.batch_size = batch_size, .peak = trace.peak(), .device = predict_device_memory(trace)};
}

absl::StatusOr<BatchSizePlanner> BatchSizePlanner::create(Record record, const BatchSizePlannerOptions& options,
                                                          int64_t max_recorded_batch_size) {
  std::string problems;
  const auto require = [&](bool valid, const std::string& problem) {
    if (!valid) problems += (problems.empty() ? "" : "; ") + problem;
  };
  require(options.device_bytes >= 0, "device_bytes must be >= 0, got " + std::to_string(options.device_bytes));
  require(options.usable > 0 && options.usable <= 1, "usable must be in (0, 1], got " + std::to_string(options.usable));
  require(options.reserve_bytes >= 0, "reserve_bytes must be >= 0, got " + std::to_string(options.reserve_bytes));
  require(options.devices >= 1, "devices must be >= 1, got " + std::to_string(options.devices));
  require(options.global_batch_size >= 0,
          "global_batch_size must be >= 0, got " + std::to_string(options.global_batch_size));
  require(options.grad_accum_steps >= 1,
          "grad_accum_steps must be >= 1, got " + std::to_string(options.grad_accum_steps));
  require(options.max_batch_size >= 1, "max_batch_size must be >= 1, got " + std::to_string(options.max_batch_size));
  require(max_recorded_batch_size >= 4,
          "max_recorded_batch_size must be >= 4, got " + std::to_string(max_recorded_batch_size));
  if (!problems.empty()) return absl::InvalidArgumentError(problems);
  return BatchSizePlanner(std::move(record), options, max_recorded_batch_size);
}

absl::StatusOr<MemoryEstimate> BatchSizePlanner::estimate(int64_t grad_accum_steps) {
  const bool accumulates = grad_accum_steps > 1;
  std::optional<MemoryEstimate>& estimate = estimates_[accumulates ? 1 : 0];
  if (!estimate) {
    const int64_t micro_batches = accumulates ? 2 : 1;
    TRAINKIT_ASSIGN_OR_RETURN(
        estimate,
        MemoryEstimate::create([&](int64_t rows) { return record_(rows, micro_batches); }, max_recorded_batch_size_));
  }
  if (grad_accum_steps <= 2) return *estimate;
  if (estimate->kept_rows_ == 0) {
    const int64_t rows = estimate->check_batch_size_ / 4;  // the least that was recorded
    TRAINKIT_ASSIGN_OR_RETURN(const MemoryTrace three, record_(rows, 3));
    const MemoryBytes more = three.without(MemoryClass::kWorkspace).live(), less = estimate->trace(rows).live();
    for (size_t kind = 0; kind < kMemoryClasses; ++kind) {
      estimate->kept_bytes_.by_class[kind] = std::max<int64_t>(0, more.by_class[kind] - less.by_class[kind]);
    }
    estimate->kept_rows_ = rows;
  }
  MemoryEstimate longer = *estimate;
  longer.kept_ = grad_accum_steps - 2;
  return longer;
}

bool BatchSizePlanner::fits(const MemoryEstimate& estimate, int64_t batch_size) const {
  if (options_.device_bytes == 0) return true;
  const auto usable = static_cast<int64_t>(static_cast<double>(options_.device_bytes) * options_.usable);
  return usable > options_.reserve_bytes && trainkit::fits(estimate.trace(batch_size), usable - options_.reserve_bytes);
}

absl::StatusOr<BatchSizePlan> BatchSizePlanner::describe(int64_t batch_size, int64_t grad_accum_steps) {
  TRAINKIT_ASSIGN_OR_RETURN(const MemoryEstimate estimate, this->estimate(grad_accum_steps));
  BatchSizePlan plan{.batch_size = batch_size,
                     .devices = options_.devices,
                     .grad_accum_steps = grad_accum_steps,
                     .memory = estimate.predict(batch_size),
                     .fits = fits(estimate, batch_size)};
  // A given batch size may give more rows than the global batch.
  if (options_.global_batch_size > 0) {
    plan.lost_rows = std::max<int64_t>(options_.global_batch_size - plan.global_batch_size(), 0);
  }
  return plan;
}

absl::StatusOr<BatchSizePlan> BatchSizePlanner::plan() {
  if (options_.global_batch_size == 0) {
    TRAINKIT_ASSIGN_OR_RETURN(const MemoryEstimate any, estimate(options_.grad_accum_steps));
    int64_t rows = 1;
    while (2 * rows <= options_.max_batch_size && fits(any, 2 * rows)) rows *= 2;
    return describe(rows, options_.grad_accum_steps);
  }
  TRAINKIT_ASSIGN_OR_RETURN(const MemoryEstimate whole, estimate(1));
  const int64_t share = share_batch(options_.global_batch_size, options_.devices).per_device;
  if (share <= options_.max_batch_size && fits(whole, share)) return describe(share, 1);
  if (share == 1) return describe(1, 1);
  int64_t rows = std::min(share / 2, options_.max_batch_size);
  for (; rows > 1; --rows) {
    if (share % rows != 0) continue;
    TRAINKIT_ASSIGN_OR_RETURN(const MemoryEstimate part, estimate(share / rows));
    if (fits(part, rows)) break;
  }
  return describe(rows, share / rows);
}

absl::StatusOr<BatchSizePlan> BatchSizePlanner::confirm(BatchSizePlan plan, const Attempt& attempt) {
  absl::Status ran = attempt(plan.batch_size, plan.grad_accum_steps);
  if (ran.ok()) return plan;
  if (ran.code() != absl::StatusCode::kResourceExhausted) return ran;
  const bool keeps_share = options_.global_batch_size > 0;
  const int64_t share = plan.batch_size * plan.grad_accum_steps;
  int64_t rows = 0;
  if (plan.batch_size > 1) {
    const auto runs = [&](int64_t some) { return attempt(some, keeps_share ? 2 : plan.grad_accum_steps); };
    const auto most = measure_batch_size(runs, plan.batch_size - 1);
    if (!most.ok() && most.status().code() != absl::StatusCode::kResourceExhausted) return most.status();
    rows = most.value_or(0);
  }
  const bool fits = rows > 0;
  rows = std::max<int64_t>(rows, 1);
  while (share % rows != 0) --rows;
  TRAINKIT_ASSIGN_OR_RETURN(plan, describe(rows, keeps_share ? share / rows : plan.grad_accum_steps));
  plan.fits = fits;
  return plan;
}

absl::StatusOr<int64_t> measure_batch_size(const std::function<absl::Status(int64_t batch_size)>& attempt,
                                           int64_t max_batch_size) {
  TORCH_CHECK_VALUE(max_batch_size >= 1, "max_batch_size must be >= 1, got ", max_batch_size);
  int64_t good = 0, bad = max_batch_size + 1;
  for (int64_t rows = 1; good + 1 < bad;) {
    const absl::Status status = attempt(rows);
    if (!status.ok() && status.code() != absl::StatusCode::kResourceExhausted) return status;
    (status.ok() ? good : bad) = rows;
    if (bad == 1) return status;
    rows = bad > max_batch_size ? std::min(2 * good, max_batch_size) : good + (bad - good) / 2;
  }
  return good;
}

}  // namespace trainkit
