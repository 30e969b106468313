#include "train/run/run_evaluations.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "train/run/step_losses.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit {

RunEvaluations::RunEvaluations(FitContext& run, FitOptions& fit, const LossFunction& loss, TrainingLog& log,
                               StopPolicy& stop, RunEvents& events)
    : run_(run),
      fit_(fit),
      log_(log),
      stop_(stop),
      events_(events),
      validation_(run.devices, run.step, run.options, fit_, wrap_losses(loss)) {
  if (events_.has_receiver() || fit_.keep_best) wrap_callback();
}

/// Returns that of the first set.
const LossFunction& RunEvaluations::wrap_losses(const LossFunction& loss) {
  const auto wrapped = [this](LossFunction own) {
    if (fit_.validation_with_grad) own = with_gradients(std::move(own));
    return naming_step(std::move(own), "the loss function of the evaluation", run_.progress);
  };
  for (ValidationSet& set : fit_.validation_sets) set.loss = wrapped(std::move(set.loss));
  if (!fit_.validation_loss && fit_.validation_with_grad) {
    // The same object as the training's, which has its state.
    fit_.validation_loss =
        with_gradients([&loss](torch::nn::Module& model, const Batch& batch) { return loss(model, batch); });
    return fit_.validation_loss;
  }
  fit_.validation_loss = wrapped(std::move(fit_.validation_loss));
  return fit_.validation_loss ? fit_.validation_loss : loss;
}

void RunEvaluations::wrap_callback() {
  fit_.on_evaluation = [this, call = std::move(fit_.on_evaluation)](int64_t step, Metrics& metrics) {
    if (call) call(step, metrics);
    absl::Status status =
        events_.call("on_evaluation", [&](Events& events) { return events.on_evaluation(step, metrics); });
    const auto monitored = metrics.find(run_.options.monitor);
    if (status.ok() && best_ && monitored != metrics.end()) {
      status = best_->offer(step, monitored->second, *run_.devices.module());
    }
    if (!status.ok()) throw absl::BadStatusOrAccess(status);
  };
}

absl::Status RunEvaluations::open() {
  use_devices(run_.devices, fit_.validation);
  for (const ValidationSet& set : fit_.validation_sets) use_devices(run_.devices, set.loader);
  if (!fit_.keep_best) return absl::OkStatus();
  const BestModelOptions options{.metric = run_.options.monitor,
                                 .higher_is_better = run_.options.monitor_higher_is_better,
                                 .writes = run_.is_first()};
  if (options.writes) TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(run_.options.output_dir).status());
  TRAINKIT_ASSIGN_OR_RETURN(best_, BestModel::open(run_.options.output_dir, run_.options.resume, options));
  return absl::OkStatus();
}

bool RunEvaluations::is_due() const { return fit_.validation && run_.is_due(run_.options.eval_every); }

bool RunEvaluations::is_missing() const {
  return !run_.options.resume.empty() && !stop_.finished() && is_due() && run_.progress.step > 0 &&
         run_.progress.evaluated_step != run_.progress.step;
}

bool RunEvaluations::has_last() const {
  return fit_.validation && !stop_.is_interrupted() && run_.progress.evaluated_step != run_.progress.step;
}

absl::StatusOr<Metrics> RunEvaluations::run() {
  const TrainingLog::Clock::time_point start = log_.pause();
  absl::StatusOr<Metrics> metrics = validation_.evaluate(run_.progress.step);
  if (metrics.ok()) {
    TRAINKIT_RETURN_IF_ERROR(log_.print_gpu_memory());
    note(*metrics);
    log_.log_evaluation(*metrics, std::chrono::duration<double>(TrainingLog::Clock::now() - start).count());
  }
  log_.resume(start);
  return metrics;
}

void RunEvaluations::note(const Metrics& metrics) {
  RunProgress& progress = run_.progress;
  const TrainerOptions& options = run_.options;
  progress.evaluated_step = progress.step;
  const double value = metrics.at(options.monitor);
  const auto best = progress.best.find(options.monitor);
  const bool none_yet = best == progress.best.end();
  // NaN is no improvement, and every number is one over a first evaluation of NaN.
  const bool improved =
      !std::isnan(value) && (none_yet || std::isnan(best->second) ||
                             (options.monitor_higher_is_better ? value > best->second : value < best->second));
  if (improved || none_yet) {
    progress.best = metrics;
    progress.best_step = progress.step;
  }
  progress.bad_evaluations = improved ? 0 : progress.bad_evaluations + 1;
  if (options.plateau) run_.scheduler()->step_metric(value);
  stop_.check_patience();
}

}  // namespace trainkit
