#include "trainkit/train/train_step.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <absl/status/statusor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>

#include "core/device_error.h"
#include "counted_rows.h"
#include "nonfinite.h"
#include "step_graphs.h"
#include "step_snapshot.h"
#include "steps_in_flight.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/sync_batch_norm.h"
#include "trainkit/optim/clip_grad.h"

namespace trainkit {
namespace {

GradScalerOptions scaler_options(const TrainStepOptions& options) {
  GradScalerOptions scaler = options.scaler;
  scaler.enabled = options.precision == Precision::kFp16;
  return scaler;
}

using Clock = std::chrono::steady_clock;

/// Reason for dropping graphs.
constexpr const char* kNoMemory = "out of memory in a step that was not captured";

void add_time(std::atomic<int64_t>& sum, Clock::duration time) {
  sum.fetch_add(std::chrono::nanoseconds(time).count(), std::memory_order_relaxed);
}

absl::Status failed_elsewhere(const StepVerdict& verdict, int64_t step) {
  const std::string rank = "rank " + std::to_string(verdict.failed.front());
  return to_status(
      {.exit_code = ExitCode::kDistributed,
       .id = "dist.peer",
       .problem = rank + " failed at step " + std::to_string(step) + ": " + verdict.reason},
      verdict.out_of_memory.empty() ? absl::StatusCode::kUnavailable : absl::StatusCode::kResourceExhausted);
}

/// Multiplies `gradients` in place. On the CPU a scalar becomes a tensor in each operation, so it is converted once per
/// dtype. All factors are allocated before the first gradient changes, see Note [Stages of an update].
void scale(const std::vector<at::Tensor>& gradients, double factor) {
  if (gradients.empty()) return;
  if (!gradients.front().is_cpu()) return at::_foreach_mul_(gradients, factor);
  std::map<at::ScalarType, at::Tensor> factors;
  for (const at::Tensor& gradient : gradients) {
    at::Tensor& number = factors[gradient.scalar_type()];
    if (!number.defined()) number = at::full({}, factor, gradient.options());
  }
  for (const at::Tensor& gradient : gradients) at::Tensor(gradient).mul_(factors[gradient.scalar_type()]);
}

/// Returns whether the batch is already on `device`. A device without an index is the current one.
bool is_on(at::Device device, const Batch& batch) {
  if (batch.tensors().empty()) return true;
  const at::Device there = batch.tensors().front().device();
  return device.has_index() ? there == device : there.type() == device.type();
}

}  // namespace

uint64_t LossFunction::next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

/// Result of a replica's share of a micro-batch; no output if it had no rows.
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
      scaler_(scaler_options(options)),
      in_flight_(std::make_unique<detail::StepsInFlight>()) {
  TORCH_CHECK_VALUE(options.grad_accum_steps >= 1, "grad_accum_steps must be >= 1, got ", options.grad_accum_steps);
  TORCH_CHECK_VALUE(options.grad_clip >= 0, "grad_clip must be >= 0, got ", options.grad_clip);
  TORCH_CHECK_VALUE(options.precision != Precision::kFp16 || !devices.device().is_cpu(),
                    "precision fp16 needs a GPU; use bf16 on the CPU");
  if (optimizer.param_groups().empty()) {
    for (auto& group : default_param_groups(*devices.module())) optimizer.add_param_group(std::move(group));
  }
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
    const std::string name = devices.device(replica).str();
    if (device_names_.find(name) == std::string::npos) device_names_ += (device_names_.empty() ? "" : ", ") + name;
  }
  create_mirrors();
  for (const auto& part : devices.module()->modules()) {
    const auto* norm = part->as<SyncBatchNormImpl>();
    collective_backward_ |= norm && norm->options.synchronize && devices.world_replicas() > 1;
  }
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) device_list_.push_back(devices.device(replica));
  if (ProcessGroup* group = devices.process_group()) agreement_.emplace(*group);
  prepare_graphs();
}

TrainStep::~TrainStep() = default;

/// Creates one optimizer per further copy of the weights, with the same groups and the parameters of the same names.
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
        TORCH_CHECK_VALUE(name != names.end(), "parameter '", parameter.name,
                          "' does not belong to the replicator's model");
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

void TrainStep::set_split(int64_t split) {
  TORCH_CHECK_VALUE(split >= 1, "split must be >= 1, got ", split);
  split_ = split;
}

/// Returns the cached memory of the replicas' devices.
void TrainStep::empty_device_cache() {
  if (!devices_.device().is_cpu()) at::getDeviceAllocator(devices_.device().type())->emptyCache();
}

// Note [Retrying a step]
// ~~~~~~~~~~~~~~~~~~~~~~
// When forward or backward runs out of memory, the step is retried with smaller micro-batches. Its result must equal,
// bit for bit, that of a step which used them from the start. Hence everything that a step changes before its
// update is saved or kept:
// - begin_step() takes a StepSnapshot: default generators (dropout draws from them) and buffers (BatchNorm's
//   statistics).
// - keep() keeps every batch of the step until finish(). The last one belongs to the caller until then. Earlier ones
//   are copied, because the loader reuses their memory. Copies on the host alternate between two places, since the
//   devices may still read those of the previous step.
// - abandon() drops gradients, metrics and the scaler's state of the step; retry_step() restores the snapshot and
//   weight_unit_, doubles split_ and runs all batches from the first one.
// All ranks retry or none does: micro-batches of a step share one scale, so ranks that split differently would weigh
// their rows differently. The rank that fails votes out_of_memory (see Note [Votes of a step]); the others learn it in
// settle(). A retry is impossible once this rank has voted that the step succeeded, or if the process group failed.
// Memory is freed in this order: captured graphs, then smaller micro-batches, then release_memory() with one row per
// replica.

void TrainStep::begin_step() try {
  if (capturing_) return snapshot_->take_buffers();  // each replay advances the generators
  with_memory([&] {
    if (!snapshot_) snapshot_ = std::make_unique<detail::StepSnapshot>(devices_);
    snapshot_->take();
  });
  unit_at_start_ = weight_unit_;
} catch (...) {
  if (!capturing_) forget_batches();
  throw;
}

/// Keeps a batch until finish(), see Note [Retrying a step]. Copies are page-locked if the batch is, since devices copy
/// from them asynchronously.
TrainStep::KeptBatch& TrainStep::keep(const Batch& batch) {
  const auto i = static_cast<size_t>(accumulated_);
  if (kept_.size() <= i) kept_.resize(i + 1);
  KeptBatch& kept = kept_[i];
  if (accumulated_ + 1 == options_.grad_accum_steps) {
    kept.batch = batch;
  } else {
    const c10::AutoGradMode no_grad(false);
    std::vector<at::Tensor> copies;
    for (size_t t = 0; t < batch.tensors().size(); ++t) {
      const at::Tensor& tensor = batch.tensors()[t];
      std::vector<at::Tensor>& memories = kept.memory[tensor.is_cpu() ? in_flight_->place() : 0];
      memories.resize(batch.tensors().size());
      at::Tensor& memory = memories[t];
      const bool fits = memory.defined() && memory.scalar_type() == tensor.scalar_type() &&
                        memory.device() == tensor.device() && memory.dim() == tensor.dim() &&
                        memory.sizes().slice(1) == tensor.sizes().slice(1) && memory.size(0) >= tensor.size(0);
      if (!fits) memory = at::empty_like(tensor, tensor.options().pinned_memory(tensor.is_pinned()));
      copies.push_back(memory.narrow(0, 0, tensor.size(0)));
      copies.back().copy_(tensor, /*non_blocking=*/tensor.is_cuda());
    }
    kept.batch = batch.with_tensors(std::move(copies));
  }
  return kept;
}

void TrainStep::accumulate(const Batch& batch, const LossFunction& loss) { accept(batch, &loss, nullptr); }
void TrainStep::accumulate(const Batch& batch, LossFunction&& loss) { accept(batch, nullptr, std::move(loss)); }

void TrainStep::accept(const Batch& batch, const LossFunction* borrowed, LossFunction own) {
  detail::note_step(device_names_, step_ + 1);
  if (accumulated_ == 0) in_flight_->begin();
  KeptBatch* kept = nullptr;
  with_memory([&] { kept = &keep(batch); });
  kept->borrowed_loss = borrowed;
  kept->own_loss = std::move(own);
  ++accumulated_;
  if (!uses_graphs()) run_pending_batches();
}

/// Runs forward and backward of the batches that have not been run yet.
void TrainStep::run_pending_batches() {
  if (begun_ == 0) begin_step();
  while (begun_ < accumulated_) {
    const KeptBatch& kept = kept_[static_cast<size_t>(begun_++)];
    if (!run_batch(kept, begun_ == options_.grad_accum_steps)) retry_step();
  }
}

/// Runs a batch in split_ parts. Returns false if the step must be retried.
bool TrainStep::run_batch(const KeptBatch& kept, bool last) {
  if (split_ == 1) return run_part(kept.batch, kept.loss(), last);
  const int64_t rows = kept.batch.size();
  for (int64_t part = 0; part < split_; ++part) {
    const Batch some = kept.batch.slice(rows * part / split_, rows * (part + 1) / split_);
    const bool last_part = last && part + 1 == split_;
    if (some.size() == 0 && !last_part) continue;
    if (!run_part(some, kept.loss(), last_part)) return false;
  }
  return true;
}

/// Runs forward and backward of a micro-batch. Returns false if all ranks must retry the step.
bool TrainStep::run_part(const Batch& batch, const LossFunction& loss, bool last) {
  const int64_t replicas = devices_.replicas();
  results_.resize(static_cast<size_t>(replicas));
  // A loss function may keep state between calls, so each replica's thread gets its own copy.
  std::vector<LossFunction> losses(static_cast<size_t>(replicas > 1 ? replicas : 0), loss);
  if (ProcessGroup* group = devices_.process_group()) group->set_step(step_ + 1);
  const auto scaled_loss = [&](int64_t replica) {
    const auto i = static_cast<size_t>(replica);
    const Batch shard = shard_of(batch, replica);
    ReplicaResult& result = results_[i];
    result = run_replica(replica, shard, replicas > 1 ? losses[i] : loss);
    if (!result.output || (result.share == 0 && !collective_backward_)) return at::Tensor();
    const at::Tensor& value = result.output->loss;
    const at::Tensor scaled = result.share == 1.0 ? value : value * result.share;
    const std::lock_guard lock(scaler_mutex_);
    return scaler_.scale(scaled);
  };
  try {
    devices_.run(std::ref(scaled_loss), last, [this] { send_vote(weight_ + results_[0].weight); });
  } catch (...) {
    if (capturing_) throw;  // the device has not run anything yet
    const absl::Status error = status_from_current_exception();
    const bool again = absl::IsResourceExhausted(error) && can_retry_step(batch);
    if (fail(std::string(error.message()), again, last)) return false;
    if (again && !verdict_.ok()) throw absl::BadStatusOrAccess(failed_elsewhere(verdict_, step_ + 1));
    throw;
  }
  with_memory([&] {
    StepMetrics sums = metrics_;
    for (const ReplicaResult& result : results_) {
      if (result.output) add_metrics(*result.output, result.share, sums);
    }
    metrics_ = std::move(sums);
  });
  for (const ReplicaResult& result : results_) weight_ += result.weight;
  weight_unit_ = results_[0].unit;
  results_.clear();
  reduced_ = last;
  ++parts_;
  return true;
}

/// After an out-of-memory error with `batch`: returns whether a retry may succeed, with smaller parts or with memory
/// that was freed. See Note [Retrying a step].
bool TrainStep::can_retry_step(const Batch& batch) {
  const ProcessGroup* group = devices_.process_group();
  if (group && (!group->usable() || agreement_->sent())) return false;
  released_ = drop_graphs(kNoMemory);
  if (released_ || batch.size() > devices_.replicas()) return true;
  released_ = options_.release_memory && options_.release_memory();
  return released_;
}

/// Retries the step from its start until it succeeds. Every rank splits like the others, see Note [Retrying a step].
void TrainStep::retry_step() {
  bool done = false;
  while (!done) {
    if (agreement_ || !released_) split_ *= 2;
    empty_device_cache();
    snapshot_->restore();
    weight_unit_ = unit_at_start_;
    done = true;
    for (int64_t i = 0; done && i < begun_; ++i) {
      done = run_batch(kept_[static_cast<size_t>(i)], i + 1 == options_.grad_accum_steps);
    }
  }
}

// Note [Stages of an update]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// An update that fails halfway would leave weights, optimizer state and schedule inconsistent, and a retry would apply
// a part of it twice. The update is therefore divided into stages, each run by with_memory(). A stage must allocate
// everything that it needs before it changes anything (compute into temporaries, then assign). Then an out-of-memory
// error means that the stage has had no effect and can be run again: first after emptying the device's cache, then
// after dropping graphs or release_memory().

/// Runs a stage of an update; if memory runs out, frees memory and runs it again. See Note [Stages of an update].
void TrainStep::with_memory(c10::function_ref<void()> stage) {
  for (int attempt = 0;; ++attempt) {
    try {
      return stage();
    } catch (const std::exception&) {
      if (capturing_ || attempt == 2 || !absl::IsResourceExhausted(status_from_current_exception())) throw;
    }
    const bool dropped = attempt == 1 && drop_graphs(kNoMemory);
    empty_device_cache();
    if (attempt == 1 && !dropped && options_.release_memory) options_.release_memory();
  }
}

/// Copies the rows of `replica` to its device; shares differ by one row at most.
Batch TrainStep::shard_of(const Batch& batch, int64_t replica) {
  const int64_t replicas = devices_.replicas();
  const int64_t begin = batch.size() * replica / replicas, end = batch.size() * (replica + 1) / replicas;
  const Batch shard = replicas > 1 ? batch.slice(begin, end) : batch;
  const at::Device device = devices_.device(replica);
  if (device.is_cpu() || is_on(device, shard)) return shard;
  const Clock::time_point start = Clock::now();
  Batch there = shard.to(device);
  if (replica == 0) add_time(copy_time_, Clock::now() - start);  // the others copy concurrently
  return there;
}

// Note [Weights of losses]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// The gradient of a step must equal that of one process on all rows: sum(weight_i * grad_i) / sum(weight_i) over all
// micro-batches, replicas and ranks. The denominator is only known at the end of the step, but each loss is scaled
// before its backward. Each loss is therefore scaled by result.share = weight / expected_weight_, with an estimate of
// the denominator that is equal everywhere, and update() multiplies gradients and metrics by expected_weight_ / actual
// weight. If all micro-batches weigh the same, the factor is exactly 1 and nothing is multiplied.
// - A single replica estimates from the first micro-batch of each step that has a weight.
// - Several replicas or ranks cannot, since their first weights differ. They agree once per run on weight_unit_, the
//   mean weight of a replica's first batch (agree_on_unit). It affects only the rounding, and it is saved in
//   checkpoints so that a resumed run rounds in the same way. A rank whose forward throws in that first step still
//   takes part in the agreement, because the others wait for it.
// A loss of weight 0 may be NaN (a mean over nothing). It has no backward and its values are not added: NaN * 0 is NaN.
// Only if SyncBatchNorm makes the replicas wait for each other in backward, its backward runs with factor 0. A step of
// total weight 0 is skipped.

TrainStep::ReplicaResult TrainStep::run_replica(int64_t replica, const Batch& shard, const LossFunction& loss) {
  ReplicaResult result;
  try {
    if (shard.size() > 0) result.output = forward(replica, counted_rows(shard), loss);
  } catch (...) {
    // The other ranks wait for this one, see Note [Weights of losses].
    if (weight_unit_ == 0 && devices_.process_group()) agree_on_unit(replica, 0);
    throw;
  }
  if (result.output) result.weight = counted_weight(shard, *result.output);
  const bool alone = devices_.world_replicas() == 1;
  const auto split = static_cast<double>(split_);
  result.unit = alone ? 0 : weight_unit_ > 0 ? weight_unit_ : agree_on_unit(replica, result.weight * split);
  const double whole = static_cast<double>(options_.grad_accum_steps * devices_.world_replicas());
  // See Note [Weights of losses]. With several replicas every thread computes the same number.
  const double expected =
      alone ? (weight_ == 0 ? result.weight * split * whole : expected_weight_) : result.unit * whole;
  if (replica == 0) expected_weight_ = expected;
  result.share = result.weight > 0 ? result.weight / expected : 0;
  return result;
}

LossOutput TrainStep::forward(int64_t replica, const Batch& shard, const LossFunction& loss) {
  torch::nn::Module& module = *devices_.module(replica);
  if (options_.precision == Precision::kFp32) return loss(module, shard);
  const AutocastGuard autocast(devices_.device(replica),
                               options_.precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
  return loss(module, shard);
}

/// Returns the mean weight of the replicas' first batches. Called once per run, see Note [Weights of losses].
double TrainStep::agree_on_unit(int64_t replica, double weight) {
  at::Tensor sum;
  with_memory([&] { sum = at::full({1}, weight, at::kDouble); });  // the others wait for it
  devices_.group().all_reduce(replica, sum);
  const double unit = sum.item<double>() / static_cast<double>(devices_.world_replicas());
  return unit > 0 ? unit : 1.0;
}

/// Adds the metrics of an output to `sums`. Creates new tensors instead of changing those in `sums`, so that a failure
/// has no effect.
void TrainStep::add_metrics(const LossOutput& output, double share, StepMetrics& sums) const {
  const bool first = !sums.loss.defined();
  const c10::AutoGradMode no_grad(false);
  if (first && share == 0) {
    sums.loss = at::zeros_like(output.loss);
    for (const auto& [name, value] : output.metrics) sums.metrics.emplace_back(name, at::zeros_like(value));
    return;
  }
  if (share == 0) return;
  if (first && share == 1.0) {
    sums.loss = output.loss.tensor_data();  // as detach(), without the dispatcher
    sums.metrics = output.metrics;
    for (auto& [name, value] : sums.metrics) value = value.tensor_data();
    return;
  }
  const at::Device device = devices_.device();
  const auto local = [&](const at::Tensor& value) { return value.detach().to(device, /*non_blocking=*/true); };
  sums.loss = first ? output.loss.detach() * share : sums.loss.add(local(output.loss), share);
  for (size_t i = 0; i < output.metrics.size(); ++i) {
    const auto& [name, value] = output.metrics[i];
    if (first) {
      sums.metrics.emplace_back(name, value.detach() * share);
    } else {
      TORCH_CHECK(i < sums.metrics.size() && sums.metrics[i].first == name, "metric '", name,
                  "' is not returned for every micro-batch of a step");
      sums.metrics[i].second = sums.metrics[i].second.add(local(value), share);
    }
  }
}

// Note [Votes of a step]
// ~~~~~~~~~~~~~~~~~~~~~~
// No rank may leave a step alone: the others would wait in their next collective until the timeout. Every rank sends
// exactly one vote per attempt (failed, out_of_memory, stop, save, weight, reason) and receives the combined verdict
// before the update. The vote may leave early, together with the last gradients, from the callback of devices_.run().
// Hence:
// - A rank that fails before it voted calls skip_reduction() if the gradients have not been reduced, so that the
//   others' all-reduce completes, then votes.
// - A rank that fails after it voted success cannot take that back. It waits for the verdict and leaves the process
//   group with its reason; the others notice at the latest in their next exchange.
// - If the verdict is to retry, requests to stop or save of the abandoned attempt are repeated in the next vote
//   (repeat_requests).

/// Handles an exception of this rank: takes part in the exchanges that the other ranks wait for, and tells them whether
/// to retry the step. Returns whether all ranks retry it. See Note [Votes of a step].
bool TrainStep::fail(const std::string& reason, bool again, bool reduced) {
  verdict_ = {};
  try {
    tell_others(reason, again, reduced);
  } catch (const std::exception&) {
    // The group has failed as well. The caller reports the first error.
  }
  const bool retry = again && (!agreement_ || verdict_.again);
  if (retry) repeat_requests();
  abandon(/*for_good=*/!retry);
  return retry;
}

void TrainStep::tell_others(const std::string& reason, bool again, bool reduced) {
  ProcessGroup* group = devices_.process_group();
  if (!group || !group->usable()) return;
  if (agreement_->sent()) {
    // Too late to vote: the others continue until their next exchange, see Note [Votes of a step].
    receive_verdict();
    return group->leave(reason);
  }
  if (!reduced) devices_.skip_reduction();
  vote_.failed = !again;
  vote_.out_of_memory = again;
  send_vote(weight_, reason);
  receive_verdict();
}

/// Repeats the requests of the abandoned attempt in the next vote.
void TrainStep::repeat_requests() {
  vote_.stop = std::max(vote_.stop, verdict_.stop);
  vote_.save |= verdict_.save;
}

/// Drops the accumulated gradients and metrics; also the batches if the step is not retried.
void TrainStep::abandon(bool for_good) {
  for (int64_t replica = 0; replica < devices_.replicas(); ++replica) devices_.module(replica)->zero_grad(true);
  optimizer_.zero_grad(true);
  devices_.abandon_step();
  scaler_.abandon();
  results_.clear();
  metrics_ = {};
  parts_ = 0;
  reduced_ = false;
  weight_ = 0;
  if (for_good) forget_batches();
}

void TrainStep::forget_batches() {
  for (KeptBatch& kept : kept_) kept = {.batch = {}, .memory = std::move(kept.memory)};
  accumulated_ = begun_ = 0;
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
  if (agreement_) verdict_ = agreement_->wait().value();
}

/// Sets zero metrics for a step in which this rank could read no row, although other ranks could.
void TrainStep::set_empty_metrics() {
  if (!metric_names_) {
    const std::string problem = "no row of the first step could be read";
    fail(problem, /*again=*/false, /*reduced=*/true);
    throw absl::BadStatusOrAccess(to_status({.exit_code = ExitCode::kData, .id = "data.empty", .problem = problem}));
  }
  StepMetrics nothing;
  nothing.loss = at::zeros({}, at::TensorOptions(devices_.device()));
  for (const std::string& name : *metric_names_) nothing.metrics.emplace_back(name, at::zeros_like(nothing.loss));
  metrics_ = std::move(nothing);
}

/// Exchanges the gradients and votes of all ranks. Returns false if the step must be retried.
bool TrainStep::settle() {
  if (!reduced_) devices_.run([](int64_t) { return at::Tensor(); });  // fewer micro-batches than planned
  reduced_ = true;
  if (!metrics_.loss.defined()) with_memory([&] { set_empty_metrics(); });
  if (!agreement_) {
    send_vote(weight_);
  } else {
    const Clock::time_point start = Clock::now();
    if (!agreement_->sent()) send_vote(weight_);
    receive_verdict();
    add_time(agree_time_, Clock::now() - start);
  }
  if (verdict_.ok()) return true;
  abandon(/*for_good=*/!verdict_.again);
  if (!verdict_.again) throw absl::BadStatusOrAccess(failed_elsewhere(verdict_, step_ + 1));
  repeat_requests();
  released_ = false;
  return false;
}

StepMetrics TrainStep::finish() {
  TORCH_CHECK(accumulated_ > 0, "finish() needs at least one accumulate() before it");
  uses_graphs() ? finish_with_graphs() : compute();
  if (!metric_names_) {
    metric_names_.emplace();
    for (const auto& [name, value] : metrics_.metrics) metric_names_->push_back(name);
  }
  metrics_.weight = weight_;
  metrics_.world_weight = verdict_.weight;
  forget_batches();
  parts_ = 0;
  weight_ = 0;
  ++step_;
  in_flight_->end(device_list_);
  return std::exchange(metrics_, {});
}

/// Runs the remaining work of a step on the device.
void TrainStep::compute() {
  run_pending_batches();
  while (!settle()) retry_step();
  const Clock::time_point start = Clock::now();
  update();
  add_time(update_time_, Clock::now() - start);
}

/// Updates the weights from the summed gradients. Waits for no other rank. See Note [Stages of an update].
void TrainStep::update() {
  const c10::AutoGradMode no_grad(false);
  if (verdict_.weight == 0) return skip_update();
  // The estimated weight was wrong (fewer micro-batches, or other weights): correct it, see Note [Weights of losses].
  if (const double correction = expected_weight_ / verdict_.weight; correction != 1.0 && verdict_.weight > 0) {
    for (Optimizer* optimizer : optimizers_) with_memory([&] { scale(optimizer->gradients(), correction); });
  }
  if (const double correction = expected_weight_ / weight_; correction != 1.0 && weight_ > 0) {
    with_memory([&] {
      StepMetrics scaled = metrics_;
      scaled.loss = scaled.loss * correction;
      for (auto& [name, value] : scaled.metrics) value = value * correction;
      metrics_ = std::move(scaled);
    });
  }
  for (const auto& mirror : mirrors_) mirror->set_lr_from(optimizer_);
  const bool skips = options_.skip_nonfinite && !scaler_.enabled();
  for (Optimizer* optimizer : optimizers_) {
    if (skips) {
      update_unless_nonfinite(*optimizer);
      continue;
    }
    if (options_.grad_clip > 0) {
      scaler_.unscale_(*optimizer);
      with_memory([&] {
        const at::Tensor norm = clip_grad_norm_(*optimizer, options_.grad_clip);
        if (optimizer == &optimizer_) metrics_.grad_norm = norm;
      });
    }
    with_memory([&] { scaler_.step(*optimizer); });
  }
  if (scaler_.enabled()) {
    at::Tensor found_inf;
    with_memory([&] { found_inf = scaler_.found_inf(optimizer_); });
    count_skips(found_inf);
  }
  with_memory([&] { scaler_.update(); });
  if (scheduler_) with_memory([&] { scheduler_->step(); });
  for (Optimizer* optimizer : optimizers_) optimizer->zero_grad(options_.zero_grad_set_to_none);
}

/// Drops the gradients of a step in which nothing counts. Weights, optimizer state, scale and schedule stay.
void TrainStep::skip_update() {
  if (options_.grad_clip > 0) with_memory([&] { metrics_.grad_norm = at::zeros_like(metrics_.loss); });
  scaler_.abandon();
  for (Optimizer* optimizer : optimizers_) optimizer->zero_grad(options_.zero_grad_set_to_none);
}

/// Clips and updates unless the norm of the gradients is not finite. A non-finite gradient makes the norm non-finite
/// too, so no separate pass is needed.
void TrainStep::update_unless_nonfinite(Optimizer& optimizer) {
  at::Tensor norm, found_inf;
  with_memory([&] { norm = clip_grad_norm_(optimizer, options_.grad_clip); });
  if (!norm.is_cpu() || !std::isfinite(norm.item<double>())) {  // reading a CPU tensor does not wait
    with_memory([&] { found_inf = at::isfinite(norm).logical_not_().to(at::kFloat); });
  }
  with_memory([&] { found_inf.defined() ? optimizer.step_unless(found_inf) : optimizer.step(); });
  if (&optimizer != &optimizer_) return;
  if (options_.grad_clip > 0) metrics_.grad_norm = norm;
  count_skips(found_inf);
}

/// Counts consecutive skips. `found_inf` is undefined if the host knows that all gradients are finite.
void TrainStep::count_skips(const at::Tensor& found_inf) {
  at::Tensor in_a_row, count;  // counted once, even if with_memory() retries
  with_memory([&] {
    if (!found_inf.defined()) {
      if (!none_skipped_.defined()) none_skipped_ = at::zeros({}, at::kFloat);
      in_a_row = none_skipped_;
    } else {
      const at::Tensor before = skipped_in_a_row_.defined() ? skipped_in_a_row_ : at::zeros_like(found_inf);
      in_a_row = before.add(1).mul_(found_inf);
    }
    // A graph updates the tensor that it was captured with, so the count must stay in place.
    const bool in_place = graphs_ && !in_a_row.is_cpu();
    count = !in_place ? in_a_row : skipped_in_a_row_.defined() ? skipped_in_a_row_ : at::empty_like(in_a_row);
  });
  if (!count.is_same(in_a_row)) count.copy_(in_a_row);
  skipped_in_a_row_ = count;
  metrics_.skipped_in_a_row = in_a_row;
  if (!found_inf.defined() || !options_.skip_nonfinite) return;
  with_memory([&] { snapshot_->restore_buffers_if(found_inf); });
  if (found_inf.is_cpu()) metrics_.first_nonfinite = find_nonfinite();
}

/// Runs the step again from its start without the update, and checks the result of each operation. Returns an empty
/// string if there is too little memory.
std::string TrainStep::find_nonfinite() {
  if (devices_.process_group()) return "";  // one rank cannot run collectives alone
  const c10::AutoGradMode grad(true);
  optimizer_.zero_grad(options_.zero_grad_set_to_none);  // drop the non-finite gradients of the failed attempt
  detail::StepSnapshot now(devices_);
  std::string found;
  try {
    now.take();
  } catch (const std::exception&) {
    if (!absl::IsResourceExhausted(status_from_current_exception())) throw;
    return "";
  }
  try {
    snapshot_->restore();
    for (const KeptBatch& kept : kept_) {
      const int64_t rows = kept.loss() ? kept.batch.size() : 0;
      for (int64_t part = 0; part < split_ && found.empty(); ++part) {
        const Batch some = kept.batch.slice(rows * part / split_, rows * (part + 1) / split_);
        if (some.size() == 0) continue;
        bool counts = true;
        const std::string first = detail::first_nonfinite(*devices_.module(), [&] {
          const LossOutput output = forward(0, counted_rows(some), kept.loss());
          counts = counted_weight(some, output) > 0;
          if (counts) output.loss.backward();
        });
        if (counts) found = first;
      }
    }
  } catch (const std::exception&) {
    now.restore();
    if (!absl::IsResourceExhausted(status_from_current_exception())) throw;
    return "";
  }
  now.restore();
  return found;
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
