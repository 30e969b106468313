#include "train/step/step_capture.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <bit>
#include <utility>

#include "distributed/replicas/replica_tools.h"
#include "train/agreement/agreement.h"
#include "train/agreement/steps_in_flight.h"
#include "train/graph/step_trace.h"
#include "train/losses/loss_weights.h"
#include "train/losses/metric_sums.h"
#include "train/losses/step_batches.h"
#include "train/retry/memory_recovery.h"
#include "train/update/weight_update.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

using Action = StepGraphs::Action;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int64_t address(const void* pointer) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer)); }

/// Adds the weights of the loss and of the metrics to a record. They are host values: a graph would keep returning
/// those of its capture.
void add_weights(StepRecord& record, double weight, const std::vector<double>& metric_weights) {
  record.operations.push_back({"the weight of the loss", std::bit_cast<uint64_t>(weight)});
  for (const double each : metric_weights) {
    record.operations.push_back({"the weight of a metric", std::bit_cast<uint64_t>(each)});
  }
}

}  // namespace

StepCapture::StepCapture(ReplicaStrategy& devices, const TrainStepOptions& options, const StepParts& parts)
    : devices_(devices), parts_(parts), has_others_(devices.replicas() > 1 || devices.graph_ranks()) {
  obstacle_ = obstacle_of(options);
  std::unique_ptr<GraphBackend> backend;
  if (obstacle_.empty()) {
    backend = options.graph_backend ? options.graph_backend() : make_graph_backend(devices_of(devices));
  }
  if (obstacle_.empty() && !backend) obstacle_ = "this build is without CUDA";
  TORCH_CHECK_VALUE(options.cuda_graph != CudaGraph::kOn || backend, "cuda_graph on: ", obstacle_);
  if (!backend) return;
  parts_.update.count_on_device();
  if (has_others_) {
    backend->run_beside([this] { devices_.use_current_streams(); });
    runs_beside_ = true;
  }
  modules_ = devices.module()->modules();
  graphs_ = std::make_unique<StepGraphs>(std::move(backend), StepGraphLimits{.warm_up = has_others_ ? 2 : 1});
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
    for (const at::Tensor& parameter : devices.module(replica)->parameters()) model_state_.push_back(parameter);
    for (const at::Tensor& buffer : devices.module(replica)->buffers()) model_state_.push_back(buffer);
  }
  parts_.memory.use_graphs(graphs_.get());
}

/// Returns why no step can be captured; empty if steps may be.
std::string StepCapture::obstacle_of(const TrainStepOptions& options) const {
  if (options.cuda_graph == CudaGraph::kOff) return "cuda_graph is off";
  if (!devices_.device().is_cuda() && !options.graph_backend) return "the device is " + devices_.device().str();
  for (const auto& [name, parameter] : sparse_parameters(*devices_.module())) {
    return "parameter '" + name + "' has sparse gradients, whose number of rows the host reads";
  }
  return devices_.graph_obstacle();
}

/// Returns why the pending step cannot be captured, although others may be.
std::string StepCapture::obstacle_of_batches() const {
  const at::Device device = devices_.device();
  for (int64_t i = 0; i < parts_.batches.count(); ++i) {
    const KeptBatch& kept = parts_.batches.at(i);
    if (!kept.borrowed_loss) return "the loss function is a temporary: pass a LossFunction that outlives the step";
    if (devices_.replicas() > 1) {
      if (std::ssize(kept.batch.content()->shards) == devices_.replicas()) continue;
      return "the rows of a batch are not on their devices: see Prefetcher::use_devices";
    }
    for (const at::Tensor& tensor : kept.batch.tensors()) {
      if (tensor.device().type() == device.type()) continue;
      return "the batch is on " + tensor.device().str() + ": set PrefetcherOptions::device";
    }
  }
  return "";
}

StepKey StepCapture::key() const {
  constexpr size_t kModesPerNumber = 32;
  StepKey key = {parts_.batches.split(), parts_.batches.count()};
  for (size_t i = 0; i < modules_.size(); ++i) {
    if (i % kModesPerNumber == 0) key.push_back(0);
    key.back() = 2 * key.back() + (modules_[i]->is_training() ? 1 : 0);
  }
  for (int64_t i = 0; i < parts_.batches.count(); ++i) {
    const KeptBatch& kept = parts_.batches.at(i);
    key.insert(key.end(),
               {static_cast<int64_t>(kept.borrowed_loss->id()), kept.batch.size(), kept.batch.padding_rows()});
    for (const at::Tensor& tensor : kept.batch.tensors()) {
      key.insert(key.end(), {static_cast<int64_t>(tensor.scalar_type()), tensor.dim()});
      key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
      key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
    }
  }
  return key;
}

/// Returns what a graph depends on outside the step: addresses of weights, buffers and gradients, and versions of
/// loaded state. See Note [Capture of a step].
std::vector<int64_t> StepCapture::state() const {
  std::vector<int64_t> state = parts_.update.versions();
  state.push_back(std::bit_cast<int64_t>(parts_.weights.unit()));
  for (const at::Tensor& tensor : model_state_) {
    if (!tensor.defined()) continue;
    const at::Tensor& gradient = tensor.unsafeGetTensorImpl()->grad();
    state.push_back(address(tensor.const_data_ptr()));
    state.push_back(gradient.defined() ? address(gradient.const_data_ptr()) : 0);
    state.push_back(tensor.requires_grad());
  }
  return state;
}

void StepCapture::begin_step() {
  if (!runs_beside_ || is_active()) return;
  devices_.use_current_streams();
  runs_beside_ = false;
}

void StepCapture::forget() {
  if (!is_active()) return;
  graphs_->forget();
  if (runs_beside_) graphs_->backend().run_beside([this] { devices_.use_current_streams(); });
}

void StepCapture::run(CapturableStep& step, Agreement& agreement, int64_t number) {
  if (std::string reason = obstacle_of_batches(); !reason.empty()) {
    graphs_->leave_out(std::move(reason));
    return step.compute();
  }
  parts_.update.reserve_schedule();
  if (!is_active()) return step.compute();  // the graphs were dropped to get memory
  const Agreement::By by = agreement.by();
  Action action = by == Agreement::By::kDevices ? graphs_->next_of_steady(key()) : graphs_->next(key());
  const bool uses_graph = action == Action::kCapture || action == Action::kReplay;
  if (uses_graph && by == Agreement::By::kHosts) action = Action::kEager;  // see Note [Graphs of several ranks]
  switch (action) {
    case Action::kEager:
      return run_eagerly(step);
    case Action::kWarmUp:
      return run_beside(step);
    case Action::kTrace:
      return trace(step);
    case Action::kCapture:
      return capture(step, agreement) ? replay(agreement, number, /*first=*/true) : run_eagerly(step);
    case Action::kReplay:
      if (graphs_->current().state == state()) {
        parts_.memory.run([&] {
          if (is_active()) graphs_->current().outputs.make_room();
        });
        return is_active() ? replay(agreement, number, /*first=*/false) : step.compute();
      }
      graphs_->forget();
      return step.compute();
  }
}

void StepCapture::run_eagerly(CapturableStep& step) { runs_beside_ ? run_beside(step) : step.compute(); }

/// Runs the step eagerly on the streams of captures.
void StepCapture::run_beside(CapturableStep& step) {
  graphs_->backend().run_beside([&] { step.compute(); });
}

void StepCapture::trace(CapturableStep& step) {
  StepRecord record;
  graphs_->backend().run_beside([&] {
    StepTrace trace(devices_.device());
    step.compute();
    record = trace.finish();
  });
  add_weights(record, parts_.weights.sum(), parts_.sums.metrics().metric_weights);
  // A step in which nothing counts has no update: a graph of it would skip those of other steps.
  if (graphs_->active() && parts_.weights.sum() > 0) graphs_->traced(std::move(record));
}

void StepCapture::set_capturing(bool capturing) {
  is_capturing_ = capturing;
  parts_.memory.set_capturing(capturing);
}

/// Captures the pending step. Returns false on failure: everything is then as before, and no further step is captured.
/// See Note [Capture of a step].
bool StepCapture::capture(CapturableStep& step, Agreement& agreement) {
  step.begin();
  if (!graphs_->active()) return false;  // begin() dropped the graphs to get memory
  StepGraph& graph = graphs_->current();
  try {
    take_inputs(graph);
    graph.state = state();
    parts_.memory.empty_cache();  // see Note [Capture of a step]
    set_capturing(true);
    agreement.begin_capture();
    graphs_->captured(graphs_->backend().capture([&] { record(step, agreement, graph); }));
    set_capturing(false);
    agreement.end_capture();
    graph.outputs.make_room();
    TORCH_CHECK(graph.state == state(), "the step moves weights, gradients or optimizer state to other memory");
  } catch (...) {
    undo(step, agreement, first_line(std::string(status_from_current_exception().message())));
    return false;
  }
  return true;
}

/// Copies the pending batches, or their shards on several devices, into memory that the graph reads.
void StepCapture::take_inputs(StepGraph& graph) {
  const at::NoGradGuard no_grad;
  graph.inputs.clear();
  for (int64_t i = 0; i < parts_.batches.count(); ++i) {
    KeptBatch& kept = parts_.batches.at(i);
    std::vector<at::Tensor> inputs;
    const auto copy = [&](const std::vector<at::Tensor>& tensors) {
      std::vector<at::Tensor> copies;
      copies.reserve(tensors.size());
      for (const at::Tensor& tensor : tensors) copies.push_back(at::empty_like(tensor).copy_(tensor));
      inputs.insert(inputs.end(), copies.begin(), copies.end());
      return copies;
    };
    auto content = std::make_shared<Batch::Content>(*kept.batch.content());
    for (auto& shard : content->shards) {
      auto copied = std::make_shared<Batch::Content>(*shard);
      copied->tensors = copy(shard->tensors);
      shard = std::move(copied);
    }
    if (content->shards.empty()) content->tensors = copy(content->tensors);
    kept.batch = Batch(std::move(content));
    graph.inputs.push_back(std::move(inputs));
  }
}

void StepCapture::record(CapturableStep& step, const Agreement& agreement, StepGraph& graph) {
  StepTrace trace(devices_.device());
  step.compute();
  const StepMetrics& metrics = parts_.sums.metrics();
  StepRecord record = trace.finish();
  add_weights(record, parts_.weights.sum(), metrics.metric_weights);
  const std::string changed = difference(graph.record, record);
  TORCH_CHECK(changed.empty(), "the captured step differs from the one before: ", changed);
  std::vector<at::Tensor> scalars = {metrics.loss, metrics.grad_norm, metrics.skipped_in_a_row,
                                     agreement.on_devices().weight};
  for (const auto& [name, value] : metrics.metrics) {
    graph.metric_names.push_back(name);
    scalars.push_back(value);
  }
  graph.outputs.pack(scalars, devices_.device());
  graph.weight = parts_.weights.sum();
  graph.metric_weights = metrics.metric_weights;
}

/// Undoes the host's side of a partly captured step. The device has run nothing of it.
void StepCapture::undo(CapturableStep& step, Agreement& agreement, std::string reason) {
  set_capturing(false);
  agreement.end_capture();
  devices_.recover();
  graphs_->give_up("a step cannot be captured: " + std::move(reason));
  step.undo();
  parts_.memory.empty_cache();  // free the memory of the capture
}

/// Replays a step. `first`: right after its capture, which has already done the host's side of the step.
void StepCapture::replay(Agreement& agreement, int64_t number, bool first) {
  StepGraph& graph = graphs_->current();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; !first && i < graph.inputs.size(); ++i) {
    auto input = graph.inputs[i].begin();
    const auto put = [&](const std::vector<at::Tensor>& tensors) {
      for (const at::Tensor& tensor : tensors) (input++)->copy_(tensor, /*non_blocking=*/true);
    };
    const Batch& batch = parts_.batches.at(static_cast<int64_t>(i)).batch;
    for (const auto& shard : batch.content()->shards) put(shard->tensors);
    if (batch.content()->shards.empty()) put(batch.tensors());
  }
  parts_.weights.set_sum(graph.weight);
  agreement.vote_for_replay(number, graph.weight);
  graph.graph->replay();
  if (!first) parts_.update.count_replayed_step();
  const std::vector<at::Tensor> scalars = graph.outputs.unpack();
  StepMetrics& metrics = parts_.sums.metrics();
  metrics = {};
  metrics.loss = scalars[0];
  metrics.grad_norm = scalars[1];
  metrics.skipped_in_a_row = scalars[2];
  metrics.world_weight_on_device = scalars[3];
  for (size_t i = 0; i < graph.metric_names.size(); ++i) {
    metrics.metrics.emplace_back(graph.metric_names[i], scalars[i + 4]);
  }
  metrics.metric_weights = graph.metric_weights;
  graphs_->replayed();
}

}  // namespace trainkit::detail
