// Weighs the losses of a step.
#include <ATen/ops/full.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <absl/status/statusor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "counted_rows.h"
#include "step_graphs.h"
#include "step_snapshot.h"
#include "train_step_parts.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/sync_batch_norm.h"

namespace trainkit {

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
// A step of total weight 0 is skipped.
//
// If SyncBatchNorm makes the replicas wait for each other, all of them run forward and backward. One without rows takes
// a row that does not count in the statistics. One of weight 0 begins backward with zeros at its SyncBatchNorm layers,
// and not at its loss, from where 0 * inf would be NaN: its rows count in the statistics, on which the other losses
// depend.

/// The root of a backward that sends zeros to some nodes.
struct ZeroRoot : torch::autograd::Node {
  explicit ZeroRoot(torch::autograd::edge_list to) : Node(std::move(to)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    torch::autograd::variable_list zeros;
    for (const torch::autograd::Edge& edge : next_edges()) {
      zeros.push_back(edge.function->input_metadata(edge.input_nr).zeros_like());
    }
    return zeros;
  }
};

void begin_recording(torch::nn::Module& module, bool counts_rows) {
  for (const auto& part : module.modules()) {
    if (auto* norm = part->as<SyncBatchNormImpl>()) norm->begin_recording(counts_rows);
  }
}

at::Tensor zero_loss(const torch::nn::Module& module, const at::Tensor& loss) {
  torch::autograd::edge_list to;
  for (const auto& part : module.modules()) {
    const auto* norm = part->as<SyncBatchNormImpl>();
    if (!norm) continue;
    for (const auto& recorded : norm->nodes()) {
      std::shared_ptr<torch::autograd::Node> node = recorded.lock();
      if (!node) return loss * 0;  // within an activation checkpoint
      to.emplace_back(std::move(node), 0);
    }
  }
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) to.push_back(torch::autograd::impl::gradient_edge(parameter));
  }
  at::Tensor zero = at::zeros({}, loss.options());
  torch::autograd::create_gradient_edge(
      zero, std::shared_ptr<ZeroRoot>(new ZeroRoot(std::move(to)), torch::autograd::deleteNode));
  return zero;
}

Batch uncounted_row(const Batch& batch, at::Device device) {
  std::vector<at::Tensor> row;
  for (size_t i = 0; i < batch.tensors().size(); ++i) {
    const at::Tensor& tensor = batch.tensors()[i];
    std::vector<int64_t> shape = tensor.sizes().vec();
    shape[0] = 1;
    row.push_back(batch.size() > 0 ? tensor.narrow(0, 0, 1).to(device)
                                   : at::zeros(shape, tensor.options().device(device)));
  }
  return Batch(batch.content()->fields, std::move(row), {}, /*padding_rows=*/1);
}

TrainStep::ReplicaResult TrainStep::run_replica(int64_t replica, const Batch& shard, const LossFunction& loss) {
  ReplicaResult result;
  try {
    if (shard.size() > 0) {
      result.output = forward(replica, counted_rows(shard), loss);
      result.weight = counted_weight(shard, *result.output);
    }
  } catch (...) {
    try {
      // The other ranks wait for this one, see Note [Weights of losses].
      if (weight_unit_ == 0 && devices_.process_group()) agree_on_unit(replica, 0);
    } catch (const std::exception&) {
      // The group has failed as well. The caller reports the first error.
    }
    throw;
  }
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
  const at::Device device = devices_.device();  // of the sums: the first replica may have no rows
  const auto local = [&](const at::Tensor& value) { return value.detach().to(device, /*non_blocking=*/true); };
  const auto zero = [&](const at::Tensor& value) {  // of a whole number too, since shares are fractions
    return at::zeros({}, value.options().device(device).dtype(at::result_type(value, share)));
  };
  if (first && share == 0) {
    sums.loss = zero(output.loss);
    for (const auto& [name, value] : output.metrics) sums.metrics.emplace_back(name, zero(value));
    return;
  }
  if (share == 0) return;
  if (first && share == 1.0 && devices_.replicas() == 1) {
    sums.loss = output.loss.tensor_data();  // as detach(), without the dispatcher
    sums.metrics = output.metrics;
    for (auto& [name, value] : sums.metrics) value = value.tensor_data();
    return;
  }
  sums.loss = first ? local(output.loss) * share : sums.loss.add(local(output.loss), share);
  for (size_t i = 0; i < output.metrics.size(); ++i) {
    const auto& [name, value] = output.metrics[i];
    if (first) {
      sums.metrics.emplace_back(name, local(value) * share);
    } else {
      TORCH_CHECK(i < sums.metrics.size() && sums.metrics[i].first == name, "metric '", name,
                  "' is not returned for every micro-batch of a step");
      sums.metrics[i].second = sums.metrics[i].second.add(local(value), share);
    }
  }
}

/// Sets zero metrics for a step in which this rank could read no row, although other ranks could.
void TrainStep::set_empty_metrics() {
  StepMetrics nothing;
  nothing.loss = at::zeros({}, at::TensorOptions(devices_.device()));
  const auto names = metric_names_.value_or(std::vector<std::string>());  // unknown: average_over_ranks() adds them
  for (const std::string& name : names) nothing.metrics.emplace_back(name, at::zeros_like(nothing.loss));
  metrics_ = std::move(nothing);
}

}  // namespace trainkit
