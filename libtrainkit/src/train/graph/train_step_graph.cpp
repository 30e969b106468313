// Captures and replays the steps of TrainStep as CUDA graphs. StepGraphs decides when.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <bit>

#include "distributed/agreement/device_votes.h"
#include "distributed/agreement/graph_ranks.h"
#include "distributed/replicas/single_device.h"
#include "train/graph/step_graphs.h"
#include "train/step/step_snapshot.h"
#include "train/step/train_step_parts.h"
#include "trainkit/core/status.h"
#include "trainkit/train/train_step.h"

namespace trainkit {
namespace {

// Note [Capture of a step]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// capture_step() turns the pending step into a graph:
// 1. begin_step() takes the snapshot that undo_capture() may restore. It allocates memory, possibly by dropping all
//    graphs.
// 2. take_inputs() copies the batches into tensors that the graph owns. Replays copy later batches into the same
//    memory.
// 3. step_state() remembers everything outside the step that the graph depends on: addresses of weights, buffers and
//    gradients, versions of optimizer and scaler, length of the schedule's table. Before each replay it is compared; a
//    difference drops the graphs.
// 4. The allocator's cache is emptied, because the graph needs about as much memory as the eager steps, in its own
//    pool.
// 5. record_step() runs compute() under capture. capturing_ makes errors propagate instead of being retried, and
//    compares the operations with the last eager step's.
// 6. ScalarPack reserves the memory of the results, so the replay cannot fail halfway.
// Capturing executes no device work, but it runs the host's side of the step (counters of optimizer and schedule,
// votes). The following replay_step(first = true) therefore executes only the device work. If any of the steps throws,
// undo_capture() resets the host's side: snapshot, gradients, metrics. The vote is restored by capture_step(), and the
// step then runs eagerly. Graphs are not tried again in this process.

using Action = detail::StepGraphs::Action;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int64_t address(const void* pointer) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer)); }

/// Adds the weights of the loss and of the metrics to a record. They are host values: a graph would keep returning
/// those of its capture.
void add_weights(detail::StepRecord& record, double weight, const std::vector<double>& metric_weights) {
  record.operations.push_back({"the weight of the loss", std::bit_cast<uint64_t>(weight)});
  for (const double each : metric_weights) {
    record.operations.push_back({"the weight of a metric", std::bit_cast<uint64_t>(each)});
  }
}

}  // namespace

/// Returns why no step can be captured; empty if steps may be.
std::string TrainStep::graphs_obstacle() const {
  const bool test = static_cast<bool>(detail::graph_backend_of_test());
  if (options_.cuda_graph == CudaGraph::kOff) return "cuda_graph is off";
  if (!devices_.device().is_cuda() && !test) return "the device is " + devices_.device().str();
  if (dynamic_cast<const detail::SingleDevice*>(&devices_)) return "";
  return graph_replicas_ ? graph_replicas_->graph_obstacle() : "these replicas cannot be captured";
}

void TrainStep::prepare_graphs() {
  graph_replicas_ = dynamic_cast<detail::GraphReplicas*>(&devices_);
  graph_ranks_ = dynamic_cast<detail::GraphRanks*>(&devices_);
  no_graphs_ = graphs_obstacle();
  std::unique_ptr<detail::GraphBackend> backend;
  if (no_graphs_.empty()) backend = detail::make_graph_backend(device_list_);
  if (no_graphs_.empty() && !backend) no_graphs_ = "this build is without CUDA";
  TORCH_CHECK_VALUE(options_.cuda_graph != CudaGraph::kOn || backend, "cuda_graph on: ", no_graphs_);
  if (!backend) return;
  for (Optimizer* optimizer : optimizers_) optimizer->count_on_device();
  if (graph_replicas_) {
    backend->run_beside([this] { graph_replicas_->use_current_streams(); });
    runs_beside_ = true;
  }
  if (devices_.process_group()) {
    votes_ = std::make_unique<detail::DeviceVotes>(*devices_.process_group(), devices_.device());
  }
  parts_of_model_ = devices_.module()->modules();
  graphs_ = std::make_unique<detail::StepGraphs>(std::move(backend),
                                                 detail::StepGraphLimits{.warm_up = graph_replicas_ ? 2 : 1});
  for (int64_t replica = 0; replica < devices_.replicas(); ++replica) {
    for (const at::Tensor& parameter : devices_.module(replica)->parameters()) module_state_.push_back(parameter);
    for (const at::Tensor& buffer : devices_.module(replica)->buffers()) module_state_.push_back(buffer);
  }
}

const std::string& TrainStep::graph_reason() const { return graphs_ ? graphs_->reason() : no_graphs_; }
bool TrainStep::uses_graphs() const { return graphs_ && graphs_->active(); }
int64_t TrainStep::graph_steps() const { return graphs_ ? graphs_->steps() : 0; }
int64_t TrainStep::graph_captures() const { return graphs_ ? graphs_->captures() : 0; }

bool TrainStep::drop_graphs(const std::string& reason) {
  if (!graphs_ || !graphs_->holds_any()) return false;
  graphs_->give_up(reason);
  return true;
}

/// Returns why the pending step cannot be captured, although others may be.
std::string TrainStep::step_obstacle() const {
  const at::Device device = devices_.device();
  for (int64_t i = 0; i < accumulated_; ++i) {
    const KeptBatch& kept = kept_[static_cast<size_t>(i)];
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

detail::StepKey TrainStep::step_key() const {
  constexpr size_t kModesPerNumber = 32;
  detail::StepKey key = {split_, accumulated_};
  for (size_t i = 0; i < parts_of_model_.size(); ++i) {
    if (i % kModesPerNumber == 0) key.push_back(0);
    key.back() = 2 * key.back() + (parts_of_model_[i]->is_training() ? 1 : 0);
  }
  for (int64_t i = 0; i < accumulated_; ++i) {
    const KeptBatch& kept = kept_[static_cast<size_t>(i)];
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
std::vector<int64_t> TrainStep::step_state() const {
  std::vector<int64_t> state = {scaler_.version(), scheduler_ ? scheduler_->reserved_steps() : 0,
                                std::bit_cast<int64_t>(weight_unit_)};
  for (const Optimizer* optimizer : optimizers_) state.push_back(optimizer->version());
  for (const at::Tensor& tensor : module_state_) {
    if (!tensor.defined()) continue;
    const at::Tensor& gradient = tensor.unsafeGetTensorImpl()->grad();
    state.push_back(address(tensor.const_data_ptr()));
    state.push_back(gradient.defined() ? address(gradient.const_data_ptr()) : 0);
    state.push_back(tensor.requires_grad());
  }
  return state;
}

void TrainStep::finish_with_graphs() {
  if (std::string reason = step_obstacle(); !reason.empty()) {
    graphs_->leave_out(std::move(reason));
    return compute();
  }
  // A graph cannot extend the schedule's table.
  if (scheduler_) with_memory([&] { scheduler_->reserve(optimizer_.max_step_count() + 2); });
  if (!uses_graphs()) return compute();  // reserve() dropped the graphs to get memory
  Action action = votes_on_device_ ? graphs_->next_of_steady(step_key()) : graphs_->next(step_key());
  const bool has_to_wait = votes_ && !votes_on_device_ && (action == Action::kCapture || action == Action::kReplay);
  if (has_to_wait) action = Action::kEager;  // for the other ranks, see Note [Graphs of several ranks]
  switch (action) {
    case Action::kEager:
      return compute_eagerly();
    case Action::kWarmUp:
      return compute_beside();
    case Action::kTrace:
      return trace_step();
    case Action::kCapture:
      return capture_step() ? replay_step(/*first=*/true) : compute_eagerly();
    case Action::kReplay:
      if (graphs_->current().state == step_state()) {
        with_memory([&] {
          if (uses_graphs()) graphs_->current().outputs.make_room();
        });
        return uses_graphs() ? replay_step(/*first=*/false) : compute();
      }
      graphs_->forget();
      return compute();
  }
}

void TrainStep::compute_eagerly() { runs_beside_ ? compute_beside() : compute(); }

/// Runs the step eagerly on the streams of captures.
void TrainStep::compute_beside() {
  graphs_->backend().run_beside([this] { compute(); });
}

void TrainStep::trace_step() {
  detail::StepRecord record;
  graphs_->backend().run_beside([&] {
    detail::StepTrace trace(devices_.device());
    compute();
    record = trace.finish();
  });
  add_weights(record, weight_, metrics_.metric_weights);
  // A step in which nothing counts has no update: a graph of it would skip those of other steps.
  if (graphs_->active() && weight_ > 0) graphs_->traced(std::move(record));
}

/// Captures the pending step. Returns false on failure: everything is then as before, and no further step is captured.
/// See Note [Capture of a step].
bool TrainStep::capture_step() {
  const StepVote vote = *vote_;
  begin_step();
  if (!graphs_->active()) return false;  // begin_step() dropped the graphs to get memory
  detail::StepGraph& graph = graphs_->current();
  try {
    take_inputs(graph);
    graph.state = step_state();
    empty_device_cache();  // see Note [Capture of a step]
    capturing_ = true;
    if (votes_) graph_ranks_->begin_capture();
    graphs_->captured(graphs_->backend().capture([&] { record_step(graph); }));
    capturing_ = false;
    if (votes_) graph_ranks_->end_capture();
    graph.outputs.make_room();
    TORCH_CHECK(graph.state == step_state(), "the step moves weights, gradients or optimizer state to other memory");
  } catch (...) {
    undo_capture(first_line(std::string(status_from_current_exception().message())));
    *vote_ = vote;
    return false;
  }
  *vote_ = vote;
  return true;
}

/// Copies the pending batches, or their shards on several devices, into memory that the graph reads.
void TrainStep::take_inputs(detail::StepGraph& graph) {
  const at::NoGradGuard no_grad;
  graph.inputs.clear();
  for (int64_t i = 0; i < accumulated_; ++i) {
    KeptBatch& kept = kept_[static_cast<size_t>(i)];
    std::vector<at::Tensor> inputs;
    const auto copy = [&](const std::vector<at::Tensor>& tensors) {
      std::vector<at::Tensor> copies;
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

void TrainStep::record_step(detail::StepGraph& graph) {
  detail::StepTrace trace(devices_.device());
  compute();
  detail::StepRecord record = trace.finish();
  add_weights(record, weight_, metrics_.metric_weights);
  const std::string changed = difference(graph.record, record);
  TORCH_CHECK(changed.empty(), "the captured step differs from the one before: ", changed);
  std::vector<at::Tensor> scalars = {metrics_.loss, metrics_.grad_norm, metrics_.skipped_in_a_row,
                                     votes_ ? votes_->weight() : at::Tensor()};
  for (const auto& [name, value] : metrics_.metrics) {
    graph.metric_names.push_back(name);
    scalars.push_back(value);
  }
  graph.outputs.pack(scalars, devices_.device());
  graph.weight = weight_;
  graph.metric_weights = metrics_.metric_weights;
}

/// Undoes the host's side of a partly captured step. The device has run nothing of it.
void TrainStep::undo_capture(std::string reason) {
  capturing_ = false;
  if (votes_) graph_ranks_->end_capture();
  if (graph_replicas_) graph_replicas_->recover();
  graphs_->give_up("a step cannot be captured: " + std::move(reason));
  snapshot_->restore();
  abandon(/*for_good=*/false);
  begun_ = 0;
  empty_device_cache();  // free the memory of the capture
}

/// Replays a step. `first`: right after its capture, which has already done the host's side of the step.
void TrainStep::replay_step(bool first) {
  detail::StepGraph& graph = graphs_->current();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; !first && i < graph.inputs.size(); ++i) {
    auto input = graph.inputs[i].begin();
    const auto put = [&](const std::vector<at::Tensor>& tensors) {
      for (const at::Tensor& tensor : tensors) (input++)->copy_(tensor, /*non_blocking=*/true);
    };
    const Batch& batch = kept_[i].batch;
    for (const auto& shard : batch.content()->shards) put(shard->tensors);
    if (batch.content()->shards.empty()) put(batch.tensors());
  }
  weight_ = graph.weight;
  if (votes_) cast_vote(weight_);
  graph.graph->replay();
  for (size_t i = 0; !first && i < optimizers_.size(); ++i) optimizers_[i]->count_replayed_step();
  const std::vector<at::Tensor> scalars = graph.outputs.unpack();
  metrics_ = {};
  metrics_.loss = scalars[0];
  metrics_.grad_norm = scalars[1];
  metrics_.skipped_in_a_row = scalars[2];
  metrics_.world_weight_on_device = scalars[3];
  for (size_t i = 0; i < graph.metric_names.size(); ++i) {
    metrics_.metrics.emplace_back(graph.metric_names[i], scalars[i + 4]);
  }
  metrics_.metric_weights = graph.metric_weights;
  if (!votes_) send_vote(weight_);
  graphs_->replayed();
}

}  // namespace trainkit
