#include "trainkit/train/train_step.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <absl/status/statusor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "counted_rows.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/optim/clip_grad.h"

namespace trainkit {
namespace {

GradScalerOptions scaler_options(const TrainStepOptions& options) {
  GradScalerOptions scaler = options.scaler;
  scaler.enabled = options.precision == Precision::kFp16;
  return scaler;
}

using Clock = std::chrono::steady_clock;

void add_time(std::atomic<int64_t>& sum, Clock::duration time) {
  sum.fetch_add(std::chrono::nanoseconds(time).count(), std::memory_order_relaxed);
}

template <class T>
T value_or_throw(absl::StatusOr<T> result) {
  if (!result.ok()) throw absl::BadStatusOrAccess(result.status());
  return std::move(result).value();
}

absl::Status failed_elsewhere(const StepVerdict& verdict, int64_t step) {
  const std::string rank = "rank " + std::to_string(verdict.failed.front());
  return to_status(
      {.exit_code = ExitCode::kDistributed,
       .id = "dist.peer",
       .problem = rank + " failed at step " + std::to_string(step) + ": " + verdict.reason},
      verdict.out_of_memory.empty() ? absl::StatusCode::kUnavailable : absl::StatusCode::kResourceExhausted);
}

}  // namespace

/// What a replica's part of a micro-batch came to; no output if it had no rows.
struct TrainStep::ReplicaResult {
  std::optional<LossOutput> output;
  double weight = 0;
  double share = 0;
  double unit = 0;
};

TrainStep::TrainStep(DeviceReplicator& devices, Optimizer& optimizer, const TrainStepOptions& options,
                     LRScheduler* scheduler)
    : devices_(devices),
      optimizer_(optimizer),
      scheduler_(scheduler),
      options_(options),
      scaler_(scaler_options(options)) {
  TORCH_CHECK_VALUE(options.grad_accum_steps >= 1, "grad_accum_steps must be >= 1, got ", options.grad_accum_steps);
  TORCH_CHECK_VALUE(options.grad_clip >= 0, "grad_clip must be >= 0, got ", options.grad_clip);
  TORCH_CHECK_VALUE(options.precision != Precision::kFp16 || !devices.device().is_cpu(),
                    "precision fp16 needs a GPU; use bf16 on the CPU");
  if (optimizer.param_groups().empty()) {
    for (auto& group : default_param_groups(*devices.module())) optimizer.add_param_group(std::move(group));
  }
  create_mirrors();
  if (ProcessGroup* group = devices.process_group()) agreement_.emplace(*group);
}

TrainStep::~TrainStep() = default;

/// For each further copy of the weights an optimizer of the same groups, whose parameters are those of the same names.
void TrainStep::create_mirrors() {
  std::map<const void*, std::string> names;
  for (const auto& parameter : devices_.module()->named_parameters()) {
    names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
  }
  for (int64_t copy = 1; copy < devices_.weight_copies(); ++copy) {
    const auto parameters = devices_.module(copy)->named_parameters();
    mirrors_.push_back(optimizer_.create_like());
    for (ParamGroup group : optimizer_.param_groups()) {
      for (NamedParameter& parameter : group.params) {
        const auto name = names.find(parameter.tensor.unsafeGetTensorImpl());
        TORCH_CHECK_VALUE(name != names.end(), "parameter '", parameter.name, "' is not one of the replicator's model");
        parameter.tensor = parameters[name->second];
      }
      mirrors_.back()->add_param_group(std::move(group));
    }
  }
  optimizers_.push_back(&optimizer_);
  for (const auto& mirror : mirrors_) optimizers_.push_back(mirror.get());
}

void TrainStep::synchronize() {
  devices_.synchronize();
  const StateDict state = mirrors_.empty() ? StateDict{} : optimizer_.state_dict();
  for (const auto& mirror : mirrors_) {
    const absl::Status loaded = mirror->load_state_dict(state);
    if (!loaded.ok()) throw absl::BadStatusOrAccess(loaded);
  }
}

void TrainStep::accumulate(const Batch& batch, const LossFunction& loss) {
  const int64_t replicas = devices_.replicas();
  results_.resize(static_cast<size_t>(replicas));
  // A loss function may keep something from call to call, so each thread has one of its own.
  std::vector<LossFunction> losses(static_cast<size_t>(replicas > 1 ? replicas : 0), loss);
  const bool last = accumulated_ + 1 == options_.grad_accum_steps;
  if (ProcessGroup* group = devices_.process_group()) group->set_step(step_ + 1);
  try {
    devices_.run(
        [&](int64_t replica) {
          const auto i = static_cast<size_t>(replica);
          const Batch shard = replicas > 1 ? shard_of(batch, replica) : batch;
          ReplicaResult& result = results_[i];
          result = run_replica(replica, shard, replicas > 1 ? losses[i] : loss);
          if (!result.output) return at::Tensor();
          const at::Tensor& value = result.output->loss;
          const at::Tensor scaled = result.share == 1.0 ? value : value * result.share;
          const std::lock_guard lock(scaler_mutex_);
          return scaler_.scale(scaled);
        },
        last, [&] { send_vote(weight_ + results_[0].weight); });
  } catch (const c10::OutOfMemoryError& error) {
    fail(error.what_without_backtrace(), /*out_of_memory=*/true, last);
    throw;
  } catch (...) {
    fail(std::string(status_from_current_exception().message()), /*out_of_memory=*/false, last);
    throw;
  }
  for (const ReplicaResult& result : results_) {
    if (result.output) add_metrics(*result.output, result.share);
    weight_ += result.weight;
  }
  weight_unit_ = results_[0].unit;
  results_.clear();
  reduced_ = last;
  ++accumulated_;
}

/// The rows of `replica` on its device: shares differ by one row at most.
Batch TrainStep::shard_of(const Batch& batch, int64_t replica) {
  const int64_t replicas = devices_.replicas();
  const Batch shard = batch.slice(batch.size() * replica / replicas, batch.size() * (replica + 1) / replicas);
  const at::Device device = devices_.device(replica);
  if (device.is_cpu()) return shard;
  const Clock::time_point start = Clock::now();
  Batch there = shard.to(device);
  if (replica == 0) add_time(copy_time_, Clock::now() - start);  // the others copy at the same time
  return there;
}

TrainStep::ReplicaResult TrainStep::run_replica(int64_t replica, const Batch& shard, const LossFunction& loss) {
  ReplicaResult result;
  const int64_t own = shard.size() - shard.padding_rows();
  try {
    if (shard.size() > 0) result.output = forward(replica, counted_rows(shard), loss);
  } catch (...) {
    if (weight_unit_ == 0 && devices_.process_group()) agree_on_unit(replica, 0);  // the other ranks wait for it
    throw;
  }
  if (own > 0) result.weight = result.output->weight > 0 ? result.output->weight : static_cast<double>(own);
  const bool alone = devices_.world_replicas() == 1;
  result.unit = alone ? 0 : weight_unit_ > 0 ? weight_unit_ : agree_on_unit(replica, result.weight);
  const double whole = static_cast<double>(options_.grad_accum_steps * devices_.world_replicas());
  // Every thread writes the same number; alone, the first micro-batch of a step sets the measure.
  const double expected = alone ? (accumulated_ == 0 ? result.weight * whole : expected_weight_) : result.unit * whole;
  if (replica == 0) expected_weight_ = expected;
  result.share = result.weight / expected;
  return result;
}

LossOutput TrainStep::forward(int64_t replica, const Batch& shard, const LossFunction& loss) {
  torch::nn::Module& module = *devices_.module(replica);
  if (options_.precision == Precision::kFp32) return loss(module, shard);
  const AutocastGuard autocast(devices_.device(replica),
                               options_.precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
  return loss(module, shard);
}

/// The mean of what the replicas' first micro-batches weigh: once per run, since shares must have one measure.
double TrainStep::agree_on_unit(int64_t replica, double weight) {
  at::Tensor sum = at::full({1}, weight, at::kDouble);
  devices_.group().all_reduce(replica, sum);
  const double unit = sum.item<double>() / static_cast<double>(devices_.world_replicas());
  return unit > 0 ? unit : 1.0;
}

void TrainStep::add_metrics(const LossOutput& output, double share) {
  const bool first = !metrics_.loss.defined();
  if (first && share == 1.0) {
    metrics_.loss = output.loss.tensor_data();  // as detach(), without the dispatcher
    metrics_.metrics = output.metrics;
    for (auto& [name, value] : metrics_.metrics) value = value.tensor_data();
    return;
  }
  const c10::AutoGradMode no_grad(false);
  const at::Device device = devices_.device();
  const auto local = [&](const at::Tensor& value) { return value.detach().to(device, /*non_blocking=*/true); };
  metrics_.loss = first ? output.loss.detach() * share : metrics_.loss.add_(local(output.loss), share);
  for (size_t i = 0; i < output.metrics.size(); ++i) {
    const auto& [name, value] = output.metrics[i];
    if (first) {
      metrics_.metrics.emplace_back(name, value.detach() * share);
    } else {
      TORCH_CHECK(i < metrics_.metrics.size() && metrics_.metrics[i].first == name, "metric '", name,
                  "' is not returned for every micro-batch of a step");
      metrics_.metrics[i].second.add_(local(value), share);
    }
  }
}

/// After an exception here: takes part in what the other ranks of the step wait for, and tells them.
void TrainStep::fail(const std::string& reason, bool out_of_memory, bool reduced) {
  const ProcessGroup* group = devices_.process_group();
  if (group && group->usable()) {
    if (agreement_->sent()) {
      // The others have this rank's word that the step went well, and go on: they cannot go far without it.
      receive_verdict();
      devices_.process_group()->leave(reason);
    } else {
      if (!reduced) devices_.skip_reduction();
      vote_.failed = true;
      vote_.out_of_memory = out_of_memory;
      send_vote(weight_, reason);
      receive_verdict();
    }
  }
  abandon();
}

void TrainStep::abandon() {
  for (int64_t replica = 0; replica < devices_.replicas(); ++replica) devices_.module(replica)->zero_grad(true);
  optimizer_.zero_grad(true);
  devices_.abandon_step();
  scaler_.abandon();
  results_.clear();
  metrics_ = {};
  accumulated_ = 0;
  weight_ = 0;
}

void TrainStep::send_vote(double weight, const std::string& reason) {
  vote_.weight = weight;
  vote_.reason = reason;
  if (agreement_) {
    agreement_->send(step_ + 1, vote_);
  } else {
    verdict_ = {.stop = vote_.stop, .save = vote_.save, .weight = vote_.weight};
  }
  vote_ = {};
}

void TrainStep::receive_verdict() {
  if (agreement_) verdict_ = value_or_throw(agreement_->wait());
}

/// The metrics of a step of which no row could be read here, though on other ranks.
void TrainStep::take_nothing() {
  if (!metric_names_) {
    const std::string problem = "no row of the first step could be read";
    fail(problem, /*out_of_memory=*/false, /*reduced=*/true);
    throw absl::BadStatusOrAccess(to_status({.exit_code = ExitCode::kData, .id = "data.empty", .problem = problem}));
  }
  metrics_.loss = at::zeros({}, at::TensorOptions(devices_.device()));
  for (const std::string& name : *metric_names_) metrics_.metrics.emplace_back(name, at::zeros_like(metrics_.loss));
}

StepMetrics TrainStep::finish() {
  TORCH_CHECK(accumulated_ > 0, "finish() needs at least one accumulate() before it");
  if (!reduced_) devices_.run([](int64_t) { return at::Tensor(); });  // fewer micro-batches than planned
  if (!metrics_.loss.defined()) take_nothing();
  Clock::time_point start = Clock::now();
  if (!agreement_ || !agreement_->sent()) send_vote(weight_);
  receive_verdict();
  if (agreement_) {
    const Clock::time_point agreed = Clock::now();
    add_time(agree_time_, agreed - std::exchange(start, agreed));
  }
  if (!verdict_.ok()) {
    abandon();
    throw absl::BadStatusOrAccess(failed_elsewhere(verdict_, step_ + 1));
  }
  // Fewer micro-batches than planned, or of another weight than the first: the shares do not add up to 1 yet.
  const c10::AutoGradMode no_grad(false);
  if (const double correction = expected_weight_ / verdict_.weight; correction != 1.0 && verdict_.weight > 0) {
    for (Optimizer* optimizer : optimizers_) {
      if (const auto gradients = optimizer->gradients(); !gradients.empty()) at::_foreach_mul_(gradients, correction);
    }
  }
  if (const double correction = expected_weight_ / weight_; correction != 1.0 && weight_ > 0) {
    metrics_.loss = metrics_.loss * correction;
    for (auto& [name, value] : metrics_.metrics) value = value * correction;
  }
  for (const auto& mirror : mirrors_) mirror->set_lr_from(optimizer_);
  for (Optimizer* optimizer : optimizers_) {
    if (options_.grad_clip > 0) {
      scaler_.unscale_(*optimizer);
      const at::Tensor norm = clip_grad_norm_(*optimizer, options_.grad_clip);
      if (optimizer == &optimizer_) metrics_.grad_norm = norm;
    }
    scaler_.step(*optimizer);
  }
  scaler_.update();
  if (scheduler_) scheduler_->step();
  for (Optimizer* optimizer : optimizers_) optimizer->zero_grad(options_.zero_grad_set_to_none);
  if (!metric_names_) {
    metric_names_.emplace();
    for (const auto& [name, value] : metrics_.metrics) metric_names_->push_back(name);
  }
  metrics_.weight = weight_;
  metrics_.world_weight = verdict_.weight;
  accumulated_ = 0;
  weight_ = 0;
  ++step_;
  add_time(update_time_, Clock::now() - start);
  return std::exchange(metrics_, {});
}

StepTimes TrainStep::times() const {
  const auto seconds = [](const std::atomic<int64_t>& sum) {
    return 1e-9 * static_cast<double>(sum.load(std::memory_order_relaxed));
  };
  return {.copy_seconds = seconds(copy_time_),
          .reduce_seconds = seconds(agree_time_) + devices_.reduce_seconds(),
          .update_seconds = seconds(update_time_)};
}

void TrainStep::average_over_ranks(StepMetrics& metrics) {
  ProcessGroup* group = devices_.process_group();
  if (!group || group->world_size() == 1) return;
  if (metrics.world_weight == 0) return;
  std::vector<at::Tensor> values{metrics.loss.to(at::kDouble)};
  for (const auto& [name, value] : metrics.metrics) values.push_back(value.to(at::kDouble));
  const at::Tensor sums = at::stack(values).mul_(metrics.weight / metrics.world_weight);
  const absl::Status reduced = group->all_reduce(sums, "all_reduce(metrics)");
  if (!reduced.ok()) throw absl::BadStatusOrAccess(reduced);
  metrics.loss = sums[0];
  for (size_t i = 0; i < metrics.metrics.size(); ++i) metrics.metrics[i].second = sums[static_cast<int64_t>(i) + 1];
}

}  // namespace trainkit
