// The records and messages of a run.
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "train/run/training_run.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"

namespace trainkit {

void TrainingRun::begin_log() {
  if (!fit_.logger) return;
  const int64_t steps = planned_steps(loader_.batches_per_epoch(), options_);
  const bool steps_end = steps == options_.max_steps;
  fit_.logger->begin({.first_step = first_step_,
                      .total_steps = steps == 0 ? 0 : progress_.first_step + steps,
                      .total_epochs = steps_end ? 0 : static_cast<double>(progress_.first_epoch + options_.max_epochs),
                      .max_seconds = std::chrono::duration<double>(options_.max_time).count()});
}

void TrainingRun::log_learning_rate(double asked) {
  // Not base_lr(), which a plateau may have lowered.
  if (!fit_.logger || asked == optimizer_.initial_lr()) return;
  fit_.logger->print(fmt::format(
      "warning: resuming with the checkpoint's learning rate {:g}; {:g} is ignored. Use --init_from to start a "
      "new run from its weights",
      base_lr(), asked));
}

void TrainingRun::warn_of_modes() {
  std::string first;
  int64_t layers = 0, in_evaluation = 0;
  for (const auto& part : devices_.module()->named_modules()) {
    const std::vector<at::Tensor> own = part.value()->parameters(/*recurse=*/false);
    if (std::none_of(own.begin(), own.end(), [](const at::Tensor& one) { return one.requires_grad(); })) continue;
    ++layers;
    if (part.value()->is_training()) continue;
    if (in_evaluation++ == 0) first = part.key();
  }
  if (!devices_.module()->is_training() || (layers > 0 && in_evaluation == layers)) {
    fit_.logger->print(
        "warning: the model is in evaluation mode and is trained so: without dropout, and BatchNorm uses its running "
        "statistics. Call model->train() in the model factory if that is not intended");
  } else if (in_evaluation > 0) {
    fit_.logger->print(
        fmt::format("note: {} of {} layers with trained parameters are in evaluation mode and stay so "
                    "({}{})",
                    in_evaluation, layers, first, in_evaluation > 1 ? ", ..." : ""));
  }
}

void TrainingRun::warn_of_model() {
  if (!fit_.logger) return;
  warn_of_modes();
  if (devices_.shards()) return;  // the optimizer has parts of the parameters
  std::unordered_set<const void*> updated;
  for (const ParamGroup& group : optimizer_.param_groups()) {
    for (const NamedParameter& parameter : group.params) updated.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  std::vector<NamedParameter> others = trainable_parameters(*devices_.module());
  std::erase_if(others, [&](const NamedParameter& parameter) {
    return updated.contains(parameter.tensor.unsafeGetTensorImpl());
  });
  if (others.empty()) return;
  fit_.logger->print(fmt::format(
      "warning: {} parameters of the model have gradients but are not in the optimizer and stay unchanged ({}{}). "
      "Add them with add_param_group, or freeze them (requires_grad false)",
      others.size(), others.front().name, others.size() > 1 ? ", ..." : ""));
}

bool TrainingRun::measures_now() const {
  return options_.predicted_memory && progress_.step == first_step_ + 1 && step_.accumulated() == 0 &&
         detail::RealMemory::can_measure(devices_);
}

bool TrainingRun::is_steady() const {
  return !step_.uses_graphs() || step_.graph_captures() > 0 || progress_.step >= first_step_ + kLateCapture;
}

DeviceMemory TrainingRun::predicted_memory() const {
  const bool on_gpu = !devices_.device().is_cpu() && options_.predicted_device_memory;
  return on_gpu ? *options_.predicted_device_memory
                : DeviceMemory{.allocated_bytes = options_.predicted_memory->total()};
}

void TrainingRun::log_memory() {
  const MemoryBytes& classes = *options_.predicted_memory;
  const DeviceMemory predicted = predicted_memory();
  const DeviceMemory real = real_memory_->finish(classes[MemoryClass::kBatch] + classes[MemoryClass::kCache]);
  real_memory_.reset();
  result_.real_memory_bytes = real.allocated_bytes;
  result_.real_reserved_bytes = real.reserved_bytes;
  if (!fit_.logger || real.allocated_bytes == 0) return;
  const auto compared = [](int64_t planned, int64_t counted, const char* where) {
    return fmt::format("{} predicted {}, {} real ({:+.1f}%)", format_size(planned), where, format_size(counted),
                       100 * (static_cast<double>(planned) / static_cast<double>(counted) - 1));
  };
  std::string text = "memory: " + compared(predicted.allocated_bytes, real.allocated_bytes, "at the peak of a step");
  if (predicted.reserved_bytes > 0 && real.reserved_bytes > 0)
    text += "; " + compared(predicted.reserved_bytes, real.reserved_bytes, "reserved for it");
  fit_.logger->print(text);
}

MonitorReport TrainingRun::with_memory(MonitorReport report) const {
  report.predicted_step_bytes = result_.predicted_memory_bytes;
  report.real_step_bytes = result_.real_memory_bytes;
  return report;
}

void TrainingRun::log_monitor(bool now) {
  constexpr double kEvery = 5;  // seconds
  if (!fit_.logger || (!now && seconds_since(reported_) < kEvery)) return;
  reported_ = Clock::now();
  fit_.logger->log_monitor(with_memory(monitor_->report()));
}

absl::Status TrainingRun::log_gpu_memory() {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string line, describe_gpu_memory(devices_, group_));
  if (fit_.logger && !line.empty()) fit_.logger->print(line);
  return absl::OkStatus();
}

absl::Status TrainingRun::log_split() {
  progress_.split = result_.split = step_.split();
  TRAINKIT_RETURN_IF_ERROR(log_gpu_memory());
  if (!fit_.logger) return absl::OkStatus();
  const int64_t rows = std::max<int64_t>(1, loader_.options().batch_size / step_.split());
  fit_.logger->print(
      fmt::format("out of memory at step {}: each batch is now split into {} parts of about {} rows; "
                  "the rows per step are unchanged",
                  progress_.step, step_.split(), rows));
  const auto buffers = devices_.module()->named_buffers();
  const bool normalises = std::any_of(buffers.begin(), buffers.end(),
                                      [](const auto& buffer) { return buffer.key().ends_with("running_mean"); });
  if (normalises) fit_.logger->print("warning: BatchNorm now normalises over the smaller parts");
  return absl::OkStatus();
}

void TrainingRun::log_graphs() {
  result_.graph_steps = step_.graph_steps();
  const bool first = std::exchange(captures_, step_.graph_captures()) == 0 && captures_ > 0;
  const bool ended = std::exchange(uses_graphs_, step_.uses_graphs()) && !uses_graphs_;
  const bool late = uses_graphs_ && captures_ == 0 && progress_.step == first_step_ + kLateCapture;
  if (!fit_.logger) return;
  if (first) fit_.logger->print(fmt::format("steps run as one CUDA graph from step {} on", progress_.step));
  if (ended || late) fit_.logger->print("steps run without a CUDA graph: " + step_.graph_reason());
}

void TrainingRun::log_skips(bool wait) {
  for (const std::string& line : skipped_.take(wait)) {
    if (fit_.logger) fit_.logger->print(line);
  }
  result_.skipped_steps = skipped_.total();
}

MonitorSources TrainingRun::monitor_sources() {
  MonitorSources sources{.step_times = [this] { return step_.times(); }};
  for (int64_t replica = 0; replica < devices_.replicas(); ++replica) {
    const at::Device device = devices_.device(replica);
    if (device.is_cuda()) sources.cuda_devices.push_back(std::max<int>(device.index(), 0));
  }
  if (!sources.cuda_devices.empty()) sources.allocators = [this] { return allocator_use(devices_); };
  return sources;
}

void TrainingRun::average_metrics() {
  if (!std::exchange(averaged_, true)) step_.average_over_ranks(last_metrics_);
}

// Note [Learning rate of a record]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A record has the learning rates with which its step updated the weights, but at the end of a step the optimizer has
// those of the next one. The host's rate is kept before the update. Where a schedule runs on the device, the host
// computes the rate when the count of applied steps arrives with the other scalars: a step that was applied had the
// rate of the count before it, a skipped one that of the same count.

LateRates TrainingRun::rates_of_last_step() {
  const std::vector<at::Tensor>& on_device = optimizer_.device_group_lrs();
  const auto times = [this](double lr) {
    std::vector<double> lrs;
    for (const ParamGroup& group : optimizer_.param_groups()) lrs.push_back(lr * group.lr_multiple);
    return lrs;
  };
  if (on_device.empty()) return {.scalars = {}, .values = [=, lr = last_lr_](const double*) { return times(lr); }};
  if (!scheduler_) {
    return {.scalars = on_device, .values = [count = on_device.size()](const double* arrived) {
              return std::vector<double>(arrived, arrived + count);
            }};
  }
  const at::Tensor& skipped = last_metrics_.skipped_in_a_row;
  const bool may_skip = skipped.defined(), counts = may_skip || last_metrics_.world_weight > 0;
  LateRates rates{.scalars = {optimizer_.step_count()}};
  if (may_skip) rates.scalars.push_back(skipped);
  rates.values = [=, this](const double* arrived) {
    const bool applied = counts && !(may_skip && arrived[1] > 0);
    return times(scheduler_->lr_after(static_cast<int64_t>(arrived[0]) - (applied ? 1 : 0)));
  };
  return rates;
}

absl::Status TrainingRun::log_step() {
  constexpr size_t kUsualValues = 16;
  // All ranks must end at the same step if a loss is not finite. Earlier records are therefore read now on all of
  // them; their copies finished long ago.
  if (group_) TRAINKIT_RETURN_IF_ERROR(records_.emit(/*wait=*/true));
  average_metrics();
  const double seconds = seconds_since(interval_start_);
  LogRecord record{.step = progress_.step, .epoch = epoch_fraction(), .split = "train"};
  record.values.reserve(kUsualValues);
  record.values.emplace_back("samples_per_second", static_cast<double>(interval_rows_ * ranks()) / seconds);
  if (interval_weight_ > 0) {
    record.values.emplace_back(options_.weight_unit + "_per_second", interval_weight_ / seconds);
  }
  monitor_->append_values(record.values);
  if (save_seconds_ > 0) record.values.emplace_back("save_seconds", std::exchange(save_seconds_, 0));
  const double background = saves_.background_seconds();
  if (const double written = background - std::exchange(background_seconds_, background); written > 0) {
    record.values.emplace_back("save_fraction", std::min(written / seconds, 1.0));
  }
  TRAINKIT_RETURN_IF_ERROR(add_gpus(record));
  if (step_.scaler().enabled()) {
    StepMetrics logged = last_metrics_;
    logged.metrics.emplace_back("loss_scale", step_.scaler().get_scale());
    records_.add(std::move(record), logged, rates_of_last_step());
  } else {
    records_.add(std::move(record), last_metrics_, rates_of_last_step());
  }
  interval_rows_ = 0;
  interval_weight_ = 0;
  interval_start_ = Clock::now();
  return group_ && !devices_.device().is_cpu() ? absl::OkStatus() : records_.emit(/*wait=*/false);
}

absl::Status TrainingRun::add_gpus(LogRecord& record) {
  record.gpu_memory_bytes = device_memory_bytes(devices_);
  record.gpu_utilisation = monitor_->gpu_utilisation();
  if (!group_ || record.gpu_memory_bytes.empty()) return absl::OkStatus();
  return gather_gpus(*group_, record.gpu_memory_bytes, record.gpu_utilisation);
}

double TrainingRun::epoch_fraction() const {
  return static_cast<double>(loader_.epoch()) +
         static_cast<double>(loader_.position()) / static_cast<double>(loader_.batches_per_epoch());
}

void TrainingRun::record_evaluation(Metrics metrics, Clock::time_point start) {
  progress_.evaluated_step = progress_.step;
  const double value = metrics.at(options_.monitor);
  const auto best = progress_.best.find(options_.monitor);
  const bool none_yet = best == progress_.best.end();
  // NaN is no improvement, and every number is one over a first evaluation of NaN.
  const bool improved =
      !std::isnan(value) && (none_yet || std::isnan(best->second) ||
                             (options_.monitor_higher_is_better ? value > best->second : value < best->second));
  if (improved || none_yet) {
    progress_.best = metrics;
    progress_.best_step = progress_.step;
  }
  progress_.bad_evaluations = improved ? 0 : progress_.bad_evaluations + 1;
  if (options_.plateau) scheduler_->step_metric(value);
  stop_.check_patience();
  if (fit_.logger) {
    LogRecord record{.step = progress_.step,
                     .epoch = epoch_fraction(),
                     .split = "val",
                     .values = {},
                     .lr = {},
                     .gpu_memory_bytes = {}};
    record.values.emplace_back("loss", metrics.at("loss"));
    for (const auto& [name, metric] : metrics) {
      if (name != "loss") record.values.emplace_back(name, metric);
    }
    record.values.emplace_back("evaluation_seconds", seconds_since(start));
    fit_.logger->log(record);
  }
  result_.evaluation = std::move(metrics);
}

absl::Status TrainingRun::record_profile() {
  if (!profile_.begin_step(progress_.step + 1)) return absl::OkStatus();
  return write_profile();
}

absl::Status TrainingRun::write_profile() {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string line, profile_.write(progress_.step));
  if (fit_.logger) fit_.logger->print(line);
  return absl::OkStatus();
}

}  // namespace trainkit
