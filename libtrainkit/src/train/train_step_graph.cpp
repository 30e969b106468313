// The step as a CUDA graph: what TrainStep does around StepGraphs, which decides when.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <bit>

#include "distributed/single_device.h"
#include "step_graphs.h"
#include "step_snapshot.h"
#include "trainkit/core/status.h"
#include "trainkit/train/train_step.h"

namespace trainkit {
namespace {

using Action = detail::StepGraphs::Action;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int64_t address(const void* pointer) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer)); }

/// What a record has besides operations: a graph would go on telling the weight of its capture.
void add_weight(detail::StepRecord& record, double weight) {
  record.operations.push_back({"the weight of the loss", std::bit_cast<uint64_t>(weight)});
}

}  // namespace

/// Why no step can be captured; empty if one may be.
std::string TrainStep::why_never() const {
  const bool test = static_cast<bool>(detail::graph_backend_of_test());
  if (options_.cuda_graph == CudaGraph::kOff) return "cuda_graph is off";
  if (!devices_.device().is_cuda() && !test) return "the device is " + devices_.device().str();
  if (devices_.process_group()) return "ranks have to agree on each step";
  if (!dynamic_cast<const detail::SingleDevice*>(&devices_)) return "replicas run in threads of their own";
  return "";
}

void TrainStep::prepare_graphs() {
  no_graphs_ = why_never();
  std::unique_ptr<detail::GraphBackend> backend;
  if (no_graphs_.empty()) backend = detail::make_graph_backend(devices_.device());
  if (no_graphs_.empty() && !backend) no_graphs_ = "this build is without CUDA";
  TORCH_CHECK_VALUE(options_.cuda_graph != CudaGraph::kOn || backend, "cuda_graph on: ", no_graphs_);
  if (!backend) return;
  optimizer_.count_on_device();
  graphs_ = std::make_unique<detail::StepGraphs>(std::move(backend));
  module_state_ = devices_.module()->parameters();
  for (const at::Tensor& buffer : devices_.module()->buffers()) module_state_.push_back(buffer);
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

/// Why the step that waits cannot be captured, though others may be.
std::string TrainStep::why_not_now() const {
  const at::Device device = devices_.device();
  for (int64_t i = 0; i < accumulated_; ++i) {
    const KeptBatch& kept = kept_[static_cast<size_t>(i)];
    if (!kept.lent_loss) return "the loss function is a temporary: pass a LossFunction that is kept";
    for (const at::Tensor& tensor : kept.batch.tensors()) {
      if (tensor.device().type() == device.type()) continue;
      return "the batch is on " + tensor.device().str() +
             ": give the Prefetcher the device (PrefetcherOptions::device)";
    }
  }
  return "";
}

detail::StepKey TrainStep::step_key() const {
  detail::StepKey key = {split_, accumulated_, devices_.module()->is_training()};
  for (int64_t i = 0; i < accumulated_; ++i) {
    const KeptBatch& kept = kept_[static_cast<size_t>(i)];
    key.insert(key.end(), {static_cast<int64_t>(kept.lent_loss->id()), kept.batch.size(), kept.batch.padding_rows()});
    for (const at::Tensor& tensor : kept.batch.tensors()) {
      key.insert(key.end(), {static_cast<int64_t>(tensor.scalar_type()), tensor.dim()});
      key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
      key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
    }
  }
  return key;
}

/// What a graph takes over from outside the step: where weights, buffers and gradients lie, and what has been loaded.
std::vector<int64_t> TrainStep::step_state() const {
  std::vector<int64_t> state = {optimizer_.version(), scaler_.version(), scheduler_ ? scheduler_->reserved_steps() : 0};
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
  if (std::string reason = why_not_now(); !reason.empty()) {
    graphs_->leave_out(std::move(reason));
    return compute();
  }
  // A graph cannot make the table longer.
  if (scheduler_) with_memory([&] { scheduler_->reserve(optimizer_.max_step_count() + 2); });
  if (!uses_graphs()) return compute();  // memory was wanted
  switch (graphs_->next(step_key())) {
    case Action::kEager:
      return compute();
    case Action::kWarmUp:
      return graphs_->backend().run_beside([this] { compute(); });
    case Action::kTrace:
      return trace_step();
    case Action::kCapture:
      return capture_step() ? replay_step(/*first=*/true) : compute();
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

void TrainStep::trace_step() {
  detail::StepRecord record;
  graphs_->backend().run_beside([&] {
    detail::StepTrace trace(devices_.device());
    compute();
    record = trace.finish();
  });
  add_weight(record, weight_);
  if (graphs_->active()) graphs_->traced(std::move(record));
}

/// False if it did not work: then all is as before, and no step is captured any more.
bool TrainStep::capture_step() {
  const StepVote vote = vote_;
  begin_step();
  if (!graphs_->active()) return false;  // memory was wanted
  detail::StepGraph& graph = graphs_->current();
  try {
    take_inputs(graph);
    graph.state = step_state();
    empty_device_cache();  // the eager steps' memory, of which the graph needs as much
    capturing_ = true;
    graphs_->captured(graphs_->backend().capture([&] { record_step(graph); }));
    capturing_ = false;
    graph.outputs.make_room();
    TORCH_CHECK(graph.state == step_state(), "the step changes where weights, gradients or optimizer state lie");
  } catch (...) {
    undo_capture(first_line(std::string(status_from_current_exception().message())));
    vote_ = vote;
    return false;
  }
  vote_ = vote;
  return true;
}

/// The waiting batches in memory that the graph will read.
void TrainStep::take_inputs(detail::StepGraph& graph) {
  const at::NoGradGuard no_grad;
  graph.inputs.clear();
  for (int64_t i = 0; i < accumulated_; ++i) {
    KeptBatch& kept = kept_[static_cast<size_t>(i)];
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& tensor : kept.batch.tensors()) inputs.push_back(at::empty_like(tensor).copy_(tensor));
    kept.batch = kept.batch.with_tensors(inputs);
    graph.inputs.push_back(std::move(inputs));
  }
}

void TrainStep::record_step(detail::StepGraph& graph) {
  detail::StepTrace trace(devices_.device());
  compute();
  detail::StepRecord record = trace.finish();
  add_weight(record, weight_);
  const std::string changed = difference(graph.record, record);
  TORCH_CHECK(changed.empty(), "the captured step is not like the one before: ", changed);
  std::vector<at::Tensor> scalars = {metrics_.loss, metrics_.grad_norm, metrics_.skipped_in_a_row};
  for (const auto& [name, value] : metrics_.metrics) {
    graph.metric_names.push_back(name);
    scalars.push_back(value);
  }
  graph.outputs.pack(scalars, devices_.device());
  graph.weight = weight_;
}

/// The host's side of a step that was recorded in part. On the device it has not begun.
void TrainStep::undo_capture(std::string reason) {
  capturing_ = false;
  graphs_->give_up("a step cannot be captured: " + std::move(reason));
  snapshot_->restore();
  abandon(/*for_good=*/false);
  begun_ = 0;
  empty_device_cache();  // the capture's memory
}

/// `first`: right after its capture, which has left the host as after the step.
void TrainStep::replay_step(bool first) {
  detail::StepGraph& graph = graphs_->current();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; !first && i < graph.inputs.size(); ++i) {
    const std::vector<at::Tensor>& tensors = kept_[i].batch.tensors();
    for (size_t t = 0; t < tensors.size(); ++t) graph.inputs[i][t].copy_(tensors[t], /*non_blocking=*/true);
  }
  graph.graph->replay();
  if (!first) optimizer_.count_replayed_step();
  const std::vector<at::Tensor> scalars = graph.outputs.unpack();
  metrics_ = {};
  metrics_.loss = scalars[0];
  metrics_.grad_norm = scalars[1];
  metrics_.skipped_in_a_row = scalars[2];
  for (size_t i = 0; i < graph.metric_names.size(); ++i) {
    metrics_.metrics.emplace_back(graph.metric_names[i], scalars[i + 3]);
  }
  weight_ = graph.weight;
  send_vote(weight_);
  graphs_->replayed();
}

}  // namespace trainkit
