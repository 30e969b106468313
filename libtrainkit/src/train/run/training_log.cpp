#include "train/run/training_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/device/late_scalars.h"
#include "logging/field_names.h"
#include "monitor/diagnosis.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

namespace fields = detail::fields;

/// Number of consecutive records with a loss that is not finite that ends the run; 0 means unlimited.
int64_t most_nonfinite(const FitContext& run) {
  if (run.options.on_nonfinite != OnNonfinite::kFail) return 0;
  return run.step.scaler().enabled() ? 10 : 1;
}

double seconds_since(TrainingLog::Clock::time_point start) {
  return std::chrono::duration<double>(TrainingLog::Clock::now() - start).count();
}

MonitorReport with_memory(MonitorReport report, const DeviceMemory& predicted, const DeviceMemory& real) {
  report.predicted_step_bytes = predicted.allocated_bytes;
  report.real_step_bytes = real.allocated_bytes;
  return report;
}

/// Returns the rates of the players in the last step, from those of the host before it.
LateRates rates_of_players(const FitContext& run, const StepMetrics& metrics, const std::vector<double>& lrs) {
  const auto of_player = [&](size_t i) {
    return rates_of_step(run.players[i].optimizer, run.players[i].scheduler, metrics, lrs.at(i));
  };
  LateRates all = of_player(0);
  for (size_t i = 0; run.has_players() && i < run.players.size(); ++i) {
    const std::vector<ParamGroup>& groups = run.players[i].optimizer.param_groups();
    std::vector<std::string> names;
    for (size_t g = 0; g < groups.size(); ++g) {
      names.push_back(
          fmt::format("{}.lr.{}", run.players[i].name, groups[g].name.empty() ? std::to_string(g) : groups[g].name));
    }
    all.append(of_player(i), std::move(names));
  }
  return all;
}

}  // namespace

TrainingLog::TrainingLog(FitContext& run, Logger* logger)
    : run_(run), logger_(logger), records_(logger, most_nonfinite(run)) {}

void TrainingLog::use(Logger* logger) {
  logger_ = logger;
  records_.use(logger);
}

void TrainingLog::begin() {
  if (!logger_) return;
  const TrainerOptions& options = run_.options;
  const int64_t steps = planned_steps(run_.source.batches_per_epoch(), options);
  const bool steps_end = steps == options.max_steps;
  const double epochs = static_cast<double>(run_.progress.first_epoch + options.max_epochs);
  logger_->begin({.first_step = run_.first_step,
                  .total_steps = steps == 0 ? 0 : run_.progress.first_step + steps,
                  .total_epochs = steps_end ? 0 : epochs,
                  .max_seconds = std::chrono::duration<double>(options.max_time).count()});
}

void TrainingLog::start() {
  start_ = interval_.start = reported_ = Clock::now();
  first_stats_ = run_.source.stats();
  if (const Prefetcher* loader = run_.source.loader()) {
    monitor_.emplace(*loader, monitor_sources(), run_.options.monitoring);
  } else {
    monitor_.emplace([this] { return run_.source.stats(); }, monitor_sources(), run_.options.monitoring);
  }
}

MonitorReport TrainingLog::stop(const DeviceMemory& predicted, const DeviceMemory& real) {
  return with_memory(monitor_->stop(), predicted, real);
}

MonitorSources TrainingLog::monitor_sources() {
  MonitorSources sources{.step_times = [this] { return run_.step.times(); }};
  for (int64_t replica = 0; replica < run_.devices.replicas(); ++replica) {
    const at::Device device = run_.devices.device(replica);
    if (device.is_cuda()) sources.cuda_devices.push_back(std::max<int>(device.index(), 0));
  }
  if (!sources.cuda_devices.empty()) sources.allocators = [this] { return allocator_use(run_.devices); };
  return sources;
}

void TrainingLog::print(const std::string& line) {
  if (logger_ && !line.empty()) logger_->print(line);
}

void TrainingLog::print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) print(line);
}

absl::Status TrainingLog::print_gpu_memory() {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string line, describe_gpu_memory(run_.devices, run_.group));
  print(line);
  return absl::OkStatus();
}

void TrainingLog::add_batch(const Batch& batch) {
  if (!std::exchange(has_begun_, true)) monitor_->begin();
  interval_.rows += batch.size() - batch.padding_rows();
}

void TrainingLog::add_step(StepMetrics metrics, std::vector<double> lrs) {
  if (!run_.options.weight_unit.empty()) interval_.weight += metrics.world_weight;
  last_ = {std::move(metrics), std::move(lrs), /*averaged=*/false};
}

void TrainingLog::tick(bool now, const DeviceMemory& predicted, const DeviceMemory& real) {
  constexpr double kEvery = 5;  // seconds
  if (!logger_) return;
  if (now || seconds_since(reported_) >= kEvery) {
    reported_ = Clock::now();
    logger_->log_monitor(with_memory(monitor_->report(), predicted, real));
  }
  logger_->tick(run_.progress.step);
  for (const std::string& row : monitor_->take_rows()) logger_->show_row(row);
}

/// Averages the metrics of the last step over all ranks, once.
void TrainingLog::average_metrics() {
  if (!std::exchange(last_.averaged, true)) run_.step.average_over_ranks(last_.metrics);
}

absl::Status TrainingLog::log_step(double background_seconds) {
  constexpr size_t kUsualValues = 16;
  // All ranks must end at the same step if a loss is not finite. Earlier records are therefore read now on all of
  // them; their copies finished long ago.
  if (run_.group) TRAINKIT_RETURN_IF_ERROR(records_.emit(/*wait=*/true));
  average_metrics();
  LogRecord record{.step = run_.progress.step, .epoch = run_.epochs(), .split = "train"};
  record.values.reserve(kUsualValues);
  add_speed(record, background_seconds);
  if (const BatchSource* source = run_.source.source()) {
    for (const auto& [name, value] : source->metrics()) record.values.emplace_back(name, value);
  }
  TRAINKIT_RETURN_IF_ERROR(add_gpus(record));
  if (run_.step.scaler().enabled()) {
    StepMetrics scaled = last_.metrics;
    scaled.metrics.emplace_back(fields::kLossScale, run_.step.scaler().get_scale());
    records_.add(std::move(record), scaled, rates_of_players(run_, last_.metrics, last_.lrs));
  } else {
    records_.add(std::move(record), last_.metrics, rates_of_players(run_, last_.metrics, last_.lrs));
  }
  interval_ = {.start = Clock::now()};
  return run_.group && !run_.devices.device().is_cpu() ? absl::OkStatus() : records_.emit(/*wait=*/false);
}

void TrainingLog::add_speed(LogRecord& record, double background_seconds) {
  const double seconds = seconds_since(interval_.start);
  record.values.emplace_back(fields::kSamplesPerSecond, static_cast<double>(interval_.rows * run_.ranks()) / seconds);
  if (interval_.weight > 0) {
    record.values.emplace_back(run_.options.weight_unit + "_per_second", interval_.weight / seconds);
  }
  monitor_->append_values(record.values);
  if (interval_.save_seconds > 0) record.values.emplace_back(fields::kSaveSeconds, interval_.save_seconds);
  const double written = background_seconds - std::exchange(background_seconds_, background_seconds);
  if (written > 0) record.values.emplace_back(fields::kSaveFraction, std::min(written / seconds, 1.0));
}

/// Adds memory and utilisation of every GPU, including those of other ranks.
absl::Status TrainingLog::add_gpus(LogRecord& record) {
  record.gpu_memory_bytes = device_memory_bytes(run_.devices);
  record.gpu_utilisation = monitor_->gpu_utilisation();
  if (!run_.group || record.gpu_memory_bytes.empty()) return absl::OkStatus();
  return gather_gpus(*run_.group, record.gpu_memory_bytes, record.gpu_utilisation);
}

void TrainingLog::log_evaluation(const Metrics& metrics, double seconds) {
  if (!logger_) return;
  LogRecord record{.step = run_.progress.step,
                   .epoch = run_.epochs(),
                   .split = "val",
                   .values = {},
                   .lr = {},
                   .gpu_memory_bytes = {}};
  record.values.emplace_back(fields::kLoss, metrics.at(fields::kLoss));
  for (const auto& [name, metric] : metrics) {
    if (name != fields::kLoss) record.values.emplace_back(name, metric);
  }
  record.values.emplace_back(fields::kEvaluationSeconds, seconds);
  logger_->log(record);
}

double TrainingLog::last_loss() {
  average_metrics();
  return LateScalars({last_.metrics.loss}).values()[0];
}

TrainingLog::Clock::time_point TrainingLog::pause() {
  monitor_->pause();
  return Clock::now();
}

void TrainingLog::resume(Clock::time_point start, bool for_save) {
  monitor_->resume();
  const Clock::duration pause = Clock::now() - start;
  interval_.start += pause;
  const double seconds = std::chrono::duration<double>(pause).count();
  pause_seconds_ += seconds;
  if (for_save) interval_.save_seconds += seconds;
}

TrainingLog::RunTimes TrainingLog::times() const {
  const double seconds = seconds_since(start_);
  return {.wall_seconds = seconds,
          .effective_fraction = seconds > 0 ? 1 - pause_seconds_ / seconds : 0,
          .data_wait_fraction = difference(run_.source.stats(), first_stats_).wait_fraction()};
}

}  // namespace trainkit
