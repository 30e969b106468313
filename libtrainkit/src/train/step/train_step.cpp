#include "trainkit/train/train_step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "distributed/agreement/device_votes.h"
#include "distributed/agreement/graph_ranks.h"
#include "distributed/shards/parameter_shards.h"
#include "train/divided/sharded_state.h"
#include "train/graph/step_graphs.h"
#include "train/step/step_gradients.h"
#include "train/step/step_snapshot.h"
#include "train/step/steps_in_flight.h"
#include "train/step/train_step_parts.h"
#include "train/step/user_mistakes.h"
#include "train/step/weight_average.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/sync_batch_norm.h"

namespace trainkit {
namespace {

GradScalerOptions scaler_options(const TrainStepOptions& options) {
  GradScalerOptions scaler = options.scaler;
  scaler.enabled = options.precision == Precision::kFp16;
  return scaler;
}

}  // namespace

uint64_t LossFunction::next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

std::vector<const LossFunction*> LossFunction::for_replicas(int64_t count) const {
  while (std::ssize(copies_) + 1 < count) copies_.push_back(*this);
  std::vector<const LossFunction*> functions{this};
  for (int64_t i = 1; i < count; ++i) functions.push_back(&copies_[static_cast<size_t>(i - 1)]);
  return functions;
}

TrainStep::TrainStep(DeviceReplicator& devices, Optimizer& optimizer, const TrainStepOptions& options,
                     LRScheduler* scheduler)
    : devices_(devices),
      optimizer_(optimizer),
      scheduler_(scheduler),
      options_(options),
      scaler_(scaler_options(options)),
      late_(std::make_unique<StepVerdict>()),
      vote_(std::make_unique<StepVote>()),
      verdict_(std::make_unique<StepVerdict>()),
      in_flight_(std::make_unique<detail::StepsInFlight>()) {
  TORCH_CHECK_VALUE(options.grad_accum_steps >= 1, "grad_accum_steps must be >= 1, got ", options.grad_accum_steps);
  TORCH_CHECK_VALUE(options.grad_clip >= 0, "grad_clip must be >= 0, got ", options.grad_clip);
  TORCH_CHECK_VALUE(options.ema_decay >= 0 && options.ema_decay < 1, "ema_decay must be in [0, 1), got ",
                    options.ema_decay);
  TORCH_CHECK_VALUE(options.precision != Precision::kFp16 || !devices.device().is_cpu(),
                    "precision fp16 needs a GPU; use bf16 on the CPU");
  if (!optimizer.is_sharded()) detail::check_parameters(*devices.module(), optimizer);
  detail::add_parameters(devices, optimizer);
  shards_ = devices.shards();
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
    const std::string name = devices.device(replica).str();
    if (device_names_.find(name) == std::string::npos) device_names_ += (device_names_.empty() ? "" : ", ") + name;
  }
  create_mirrors();
  gradients_ = std::make_unique<detail::StepGradients>(devices, optimizer, options.zero_grad_set_to_none);
  for (const Optimizer* one : optimizers_) {
    if (options.ema_decay > 0) averages_.emplace_back(*one, options.ema_decay);
  }
  trained_version_ = devices.trained_version();
  for (const auto& part : devices.module()->modules()) {
    const auto* norm = part->as<SyncBatchNormImpl>();
    collective_backward_ |= norm && norm->options.synchronize && devices.world_replicas() > 1;
  }
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) device_list_.push_back(devices.device(replica));
  if (ProcessGroup* group = devices.process_group()) agreement_ = std::make_unique<StepConsensus>(*group);
  prepare_graphs();
}

TrainStep::~TrainStep() = default;

void TrainStep::request_stop(int signal) { vote_->stop = std::max(vote_->stop, signal); }
void TrainStep::request_save() { vote_->save = true; }
int TrainStep::agreed_stop() const { return verdict_->stop; }
bool TrainStep::agreed_save() const { return verdict_->save; }

/// Creates one optimizer per further copy of the weights, with the same groups and the parameters of the same names.
/// They start with the state of the first one, which an earlier TrainStep may have used.
void TrainStep::create_mirrors() {
  optimizers_.push_back(&optimizer_);
  if (shards_) {
    create_shard_mirrors();
    groups_ = optimizer_.param_groups().size();
    return;
  }
  for (int64_t copy = 1; copy < devices_.weight_copies(); ++copy) {
    mirrors_.push_back(optimizer_.create_like());
    optimizers_.push_back(mirrors_.back().get());
  }
  add_groups();
  if (optimizer_.max_step_count() > 0) copy_optimizer_state();
}

/// Gives groups that the optimizer got since the last call to mirrors and averages.
void TrainStep::add_groups() {
  std::map<const void*, std::string> names;
  for (const auto& parameter : devices_.module()->named_parameters()) {
    names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
  }
  detail::check_parameters(*devices_.module(), optimizer_);
  for (; groups_ < optimizer_.param_groups().size(); ++groups_) {
    for (size_t copy = 1; copy < optimizers_.size(); ++copy) {
      const auto parameters = devices_.module(static_cast<int64_t>(copy))->named_parameters();
      ParamGroup group = optimizer_.param_groups()[groups_];
      for (NamedParameter& parameter : group.params) {
        parameter.tensor = parameters[names.at(parameter.tensor.unsafeGetTensorImpl())];
      }
      optimizers_[copy]->add_param_group(std::move(group));
    }
    for (size_t copy = 0; copy < averages_.size(); ++copy) {
      averages_[copy].add(optimizers_[copy]->param_groups()[groups_]);
    }
  }
}

/// Begins a step of the devices, with what has changed since the last one: modes, trained parameters, groups of the
/// optimizer.
void TrainStep::follow_model() {
  devices_.begin_step();
  const bool adds_groups = groups_ < optimizer_.param_groups().size();
  if (adds_groups) add_groups();
  const bool other_trained = std::exchange(trained_version_, devices_.trained_version()) != devices_.trained_version();
  if (!adds_groups && !other_trained) return;
  for (int64_t replica = 0; replica < devices_.replicas(); ++replica) {
    for (const at::Tensor& parameter : devices_.module(replica)->parameters()) {
      if (!parameter.requires_grad()) parameter.mutable_grad().reset();  // else momentum would move it
    }
  }
  if (!graphs_ || !graphs_->active()) return;
  graphs_->forget();
  if (runs_beside_) graphs_->backend().run_beside([this] { graph_replicas_->use_current_streams(); });
}

/// The same for copies whose optimizers update the parts that the first one does not. They keep their state for the
/// next TrainStep.
void TrainStep::create_shard_mirrors() {
  auto& mirrors = optimizer_.shard_mirrors();
  for (int64_t copy = 1; copy < devices_.weight_copies(); ++copy) {
    if (std::ssize(mirrors) < copy) {
      std::vector<ParamGroup> groups = optimizer_.param_groups();
      for (ParamGroup& group : groups) {
        for (NamedParameter& parameter : group.params) {
          parameter.tensor = devices_.shards(copy)->part(shards_->index_of_part(parameter.tensor));
        }
      }
      std::unique_ptr<Optimizer> mirror = optimizer_.create_like();
      detail::add_shards(*mirror, std::move(groups), devices_, copy);
      mirrors.push_back(std::move(mirror));
    }
    optimizers_.push_back(mirrors[static_cast<size_t>(copy - 1)].get());
  }
}

void TrainStep::copy_optimizer_state() {
  const StateDict state = mirrors_.empty() ? StateDict{} : optimizer_.state_dict();
  for (const auto& mirror : mirrors_) {
    const absl::Status loaded = mirror->load_state_dict(state);
    if (!loaded.ok()) throw absl::BadStatusOrAccess(loaded);
  }
}

void TrainStep::synchronize() {
  devices_.synchronize();
  if (shards_) return;
  for (size_t i = 1; i < averages_.size(); ++i) averages_[i].assign(averages_.front());
  copy_optimizer_state();
}

NamedTensors TrainStep::averages(int64_t copy) const {
  NamedTensors named;
  if (averages_.empty()) return named;
  const detail::WeightAverage& average = averages_.at(static_cast<size_t>(copy));
  if (shards_) {
    size_t i = 0;
    for (const ParamGroup& group : optimizer_.param_groups()) {
      for (const NamedParameter& parameter : group.params) named.emplace_back(parameter.name, average.averages()[i++]);
    }
    return named;
  }
  std::map<const void*, std::string> names;  // a tied parameter keeps its first name
  for (const auto& parameter : devices_.module(copy)->named_parameters()) {
    names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
  }
  for (size_t i = 0; i < average.averages().size(); ++i) {
    named.emplace_back(names.at(average.weights()[i].unsafeGetTensorImpl()), average.averages()[i]);
  }
  return named;
}

void TrainStep::swap_averages() {
  const c10::AutoGradMode no_grad(false);
  for (const detail::WeightAverage& average : averages_) {
    for (size_t i = 0; i < average.averages().size(); ++i) {
      const at::Tensor weight = average.weights()[i].detach();
      at::Tensor before;
      with_memory([&] { before = weight.clone(); });
      weight.copy_(average.averages()[i]);
      at::Tensor(average.averages()[i]).copy_(before);
    }
  }
  if (shards_ && !averages_.empty()) devices_.gather_weights();
}

void TrainStep::set_split(int64_t split) {
  TORCH_CHECK_VALUE(split >= 1, "split must be >= 1, got ", split);
  split_ = split;
}

/// Returns the cached memory of the replicas' devices.
void TrainStep::empty_device_cache() {
  if (!devices_.device().is_cpu()) at::getDeviceAllocator(devices_.device().type())->emptyCache();
}

StepMetrics TrainStep::finish() {
  TORCH_CHECK(accumulated_ > 0, "finish() needs at least one accumulate() before it");
  try {
    const detail::StepGradients::SetAside others(*gradients_);
    uses_graphs() ? finish_with_graphs() : compute();
  } catch (...) {
    if (accumulated_ > 0) drop_failed_update();
    throw;
  }
  if (!metric_names_ && weight_ > 0) {
    metric_names_.emplace();
    for (const auto& [name, value] : metrics_.metrics) metric_names_->push_back(name);
  }
  end_verdict();
  metrics_.weight = weight_;
  metrics_.world_weight = verdict_->weight;
  if (metrics_.first_nonfinite.empty()) metrics_.first_nonfinite = std::exchange(nonfinite_, "");
  nonfinite_.clear();
  note_rows();
  forget_batches();
  parts_ = 0;
  weight_ = 0;
  ++step_;
  in_flight_->end(device_list_);
  return std::exchange(metrics_, {});
}

/// Sets StepMetrics::row_indices and rows.
void TrainStep::note_rows() {
  constexpr int64_t kMost = 8;
  for (int64_t i = 0; i < accumulated_; ++i) {
    const Batch& batch = kept_[static_cast<size_t>(i)].batch;
    const auto first = batch.row_indices().first(
        static_cast<size_t>(std::clamp<int64_t>(kMost - metrics_.rows, 0, std::ssize(batch.row_indices()))));
    metrics_.row_indices.insert(metrics_.row_indices.end(), first.begin(), first.end());
    metrics_.rows += batch.size() - batch.padding_rows();
  }
}

/// Runs the remaining work of a step on the device.
void TrainStep::compute() {
  run_pending_batches();
  while (!settle()) retry_step();
  if (weight_ > 0 && !shards_ && !gradients_->any()) detail::throw_without_gradient(step_ + 1);
  const detail::StepClock::time_point start = detail::StepClock::now();
  update();
  detail::add_time(update_time_, detail::StepClock::now() - start);
}

StepTimes TrainStep::times() const {
  const auto seconds = [](const std::atomic<int64_t>& sum) {
    return 1e-9 * static_cast<double>(sum.load(std::memory_order_relaxed));
  };
  return {.copy_seconds = seconds(copy_time_),
          .reduce_seconds = seconds(agree_time_) + devices_.reduce_seconds(),
          .update_seconds = seconds(update_time_)};
}

/// Adds the names of all ranks' metrics to *shared_names_, in the order of the ranks.
void TrainStep::share_names(ProcessGroup& group, const StepMetrics& metrics) {
  std::vector<std::string>& names = shared_names_->names;
  std::vector<std::string> own;
  for (const auto& [name, value] : metrics.metrics) own.push_back(name);
  for (int64_t rank = 0; rank < group.world_size(); ++rank) {
    const std::string text = group.broadcast_text(absl::StrJoin(own, "\n"), rank, "names of the metrics").value();
    for (const absl::string_view name : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
    }
  }
}

/// Returns the means over all ranks of the loss and of the metrics in *shared_names_, and their weights: float64, on
/// the device. The mean of a metric that no rank has is NaN. The all-reduce also counts the ranks with other metrics.
std::pair<at::Tensor, at::Tensor> TrainStep::means_of_ranks(ProcessGroup& group, const StepMetrics& metrics) {
  std::vector<at::Tensor> values{metrics.loss.to(at::kDouble).reshape({})};
  std::vector<double> weights{metrics.weight};
  size_t known = 0;
  for (const std::string& name : shared_names_->names) {
    const auto named = std::find_if(metrics.metrics.begin(), metrics.metrics.end(),
                                    [&](const auto& metric) { return metric.first == name; });
    const bool has = named != metrics.metrics.end();
    known += has;
    values.push_back(has ? named->second.to(at::kDouble).reshape({}) : at::zeros_like(values.front()));
    weights.push_back(has ? metrics.metric_weights[static_cast<size_t>(named - metrics.metrics.begin())] : 0);
  }
  weights.push_back(known < metrics.metrics.size() ? 1 : 0);
  const auto count = std::ssize(values);
  // A copy from page-locked memory does not wait for the device.
  const auto host = at::TensorOptions(at::kDouble).pinned_memory(metrics.loss.is_cuda());
  const at::Tensor factors = at::tensor(weights, host).to(metrics.loss.device(), /*non_blocking=*/true);
  const at::Tensor sums = at::cat({at::stack(values).mul_(factors.narrow(0, 0, count)), factors});
  const absl::Status reduced = group.all_reduce(sums, "all_reduce(metrics)");
  if (!reduced.ok()) throw absl::BadStatusOrAccess(reduced);
  shared_names_->ranks_with_others = LateScalars({sums[2 * count]});
  const at::Tensor totals = sums.narrow(0, count, count);
  totals.narrow(0, 0, 1).clamp_min_(std::numeric_limits<double>::min());  // a step in which nothing counts: loss 0
  return {sums.narrow(0, 0, count).div(totals), totals};
}

// The ranks exchange names that not all of them know: at once if the host knows that there are any, that is on the CPU
// and in the first call, else in the next call.
void TrainStep::average_over_ranks(StepMetrics& metrics) {
  ProcessGroup* group = devices_.process_group();
  if (!group || group->world_size() == 1) return;
  if (!metrics.world_weight_on_device.defined() && metrics.world_weight == 0) return;
  const bool waits = metrics.loss.is_cpu() || !shared_names_;
  if (!shared_names_) shared_names_ = std::make_unique<SharedNames>();
  const std::optional<LateScalars>& others = shared_names_->ranks_with_others;
  if (others && others->values()[0] > 0) share_names(*group, metrics);
  auto [means, totals] = means_of_ranks(*group, metrics);
  if (waits && others->values()[0] > 0) {
    share_names(*group, metrics);
    std::tie(means, totals) = means_of_ranks(*group, metrics);
  }
  metrics.loss = means[0];
  metrics.metrics.clear();
  metrics.metric_weights.clear();
  for (size_t i = 0; i < shared_names_->names.size(); ++i) {
    const auto at = static_cast<int64_t>(i) + 1;
    if (totals.is_cpu() && totals[at].item<double>() == 0) continue;
    metrics.metrics.emplace_back(shared_names_->names[i], means[at]);
  }
}

}  // namespace trainkit
