// Weighs the losses of a step.
#include <ATen/ops/full.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <absl/status/statusor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "train/graph/step_graphs.h"
#include "train/step/counted_rows.h"
#include "train/step/nonfinite.h"
#include "train/step/step_snapshot.h"
#include "train/step/train_step_parts.h"
#include "train/step/user_mistakes.h"
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
// A weight that is 1e30 times the estimate is refused: the loss would overflow.
// A loss of weight 0 may be NaN (a mean over nothing). It has no backward and its values are not added: NaN * 0 is NaN.
// A step of total weight 0 is skipped.
//
// If SyncBatchNorm makes the replicas wait for each other, all of them run forward and backward. One without rows takes
// a row that does not count in the statistics. One of weight 0 begins backward with zeros at its SyncBatchNorm layers,
// and not at its loss, from where 0 * inf would be NaN: its rows count in the statistics, on which the other losses
// depend.

/// Largest factor of a loss that float32 holds with room for gradients. See Note [Weights of losses].
constexpr double kMaxShare = 1e30;

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

at::Tensor zero_loss(const torch::nn::Module& module, const at::Tensor& loss, bool to_all) {
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
    if (to_all && parameter.requires_grad()) to.push_back(torch::autograd::impl::gradient_edge(parameter));
  }
  if (to.empty()) return {};
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
      detail::check_output(*result.output, step_ + 1);
      result.weight = counted_weight(shard, *result.output);
      if (result.weight > 0) detail::check_requires_grad(*result.output, *devices_.module(replica), step_ + 1);
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
  TORCH_CHECK_VALUE(result.share <= kMaxShare, "LossOutput::weight is more than ", kMaxShare,
                    " times that of the first micro-batches, got ", result.weight,
                    ": give a micro-batch of almost no weight the weight 0");
  if (options_.skip_nonfinite && result.weight > 0 && !detail::is_finite_on_host(result.output->loss)) {
    result.nonfinite = detail::first_nonfinite(*devices_.module(replica), shard, result.output->loss);
    if (result.nonfinite.empty()) result.nonfinite = "the loss is not finite";
  }
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

namespace {

/// Returns whether `value`, one of the scalars of `output`, uses memory that somebody else holds: a parameter, a
/// buffer, a tensor of the caller. It may change before the metric is read.
bool is_shared(const at::Tensor& value, const LossOutput& output) {
  size_t tensors = 0;  // of the output with this memory
  bool is_held = false;
  const auto output_tensor = [&](size_t i) -> const at::Tensor& {
    return i == 0 ? output.loss : output.metrics[i - 1].second;
  };
  for (size_t i = 0; i <= output.metrics.size(); ++i) {
    const at::Tensor& other = output_tensor(i);
    if (!other.is_alias_of(value)) continue;
    size_t handles = 0, earlier = 0;
    for (size_t j = 0; j <= output.metrics.size(); ++j) {
      const bool is_same = output_tensor(j).is_same(other);
      handles += is_same;
      earlier += is_same && j < i;
    }
    is_held |= other.use_count() > handles;
    tensors += earlier == 0;
  }
  return is_held || value.storage().use_count() > tensors;
}

/// Returns the place of metric `name`, or the number of metrics. `guess` is its place in other outputs.
size_t place_of(const std::string& name, size_t guess, const StepMetrics& sums) {
  if (guess < sums.metrics.size() && sums.metrics[guess].first == name) return guess;
  size_t i = 0;
  while (i < sums.metrics.size() && sums.metrics[i].first != name) ++i;
  return i;
}

}  // namespace

/// Adds the metrics of an output to `sums`. Creates new tensors instead of changing those in `sums`, so that a failure
/// has no effect.
void TrainStep::add_metrics(const LossOutput& output, double weight, double share, StepMetrics& sums) const {
  const bool first = !sums.loss.defined();
  const c10::AutoGradMode no_grad(false);
  const at::Device device = devices_.device();  // of the sums: the first replica may have no rows
  const auto local = [&](const at::Tensor& value) { return value.detach().to(device, /*non_blocking=*/true); };
  if (first && share == 1.0 && devices_.replicas() == 1) {
    // A trace holds tensors too: with graphs, only a parameter or a buffer is copied.
    const auto is_state = [&](const at::Tensor& value) {
      return std::any_of(module_state_.begin(), module_state_.end(),
                         [&](const at::Tensor& tensor) { return tensor.defined() && tensor.is_alias_of(value); });
    };
    const auto own = [&](const at::Tensor& value) {  // as detach(), without the dispatcher
      const bool copies = uses_graphs() ? is_state(value) : is_shared(value, output);
      return copies ? value.detach().clone() : value.tensor_data();
    };
    sums.loss = own(output.loss);
    for (const auto& [name, value] : output.metrics) sums.metrics.emplace_back(name, own(value));
    sums.metric_weights.assign(output.metrics.size(), weight);
    return;
  }
  const auto add = [&](const at::Tensor& sum, const at::Tensor& value) {
    if (sum.defined()) return share == 0 ? sum : sum.add(local(value), share);
    if (share != 0) return local(value) * share;
    // Of a whole number too, since shares are fractions.
    return at::zeros({}, value.options().device(device).dtype(at::result_type(value, share)));
  };
  sums.loss = add(sums.loss, output.loss);
  for (size_t i = 0; i < output.metrics.size(); ++i) {
    const auto& [name, value] = output.metrics[i];
    const size_t at = place_of(name, i, sums);
    if (at == sums.metrics.size()) {
      sums.metrics.emplace_back(name, at::Tensor());
      sums.metric_weights.push_back(0);
    }
    sums.metrics[at].second = add(sums.metrics[at].second, value);
    sums.metric_weights[at] += weight;
  }
}

/// Divides the sums of a step by their weights, see Note [Weights of losses]. A metric of which nothing counted is
/// dropped.
void TrainStep::correct_metrics() {
  const auto is_exact = [this](double weight) { return weight == expected_weight_; };
  const std::vector<double>& weights = metrics_.metric_weights;
  if (is_exact(weight_) && std::all_of(weights.begin(), weights.end(), is_exact)) return;
  with_memory([&] {
    StepMetrics scaled = metrics_;
    scaled.loss = scaled.loss * (expected_weight_ / weight_);
    scaled.metrics.clear();
    scaled.metric_weights.clear();
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0) continue;
      const auto& [name, value] = metrics_.metrics[i];
      scaled.metrics.emplace_back(name, value * (expected_weight_ / weights[i]));
      scaled.metric_weights.push_back(weights[i]);
    }
    metrics_ = std::move(scaled);
  });
}

/// Sets zero metrics for a step in which this rank could read no row, although other ranks could.
void TrainStep::set_empty_metrics() {
  StepMetrics nothing;
  nothing.loss = at::zeros({}, at::TensorOptions(devices_.device()));
  const auto names = metric_names_.value_or(std::vector<std::string>());  // unknown: average_over_ranks() adds them
  for (const std::string& name : names) nothing.metrics.emplace_back(name, at::zeros_like(nothing.loss));
  nothing.metric_weights.assign(names.size(), 0);
  metrics_ = std::move(nothing);
}

}  // namespace trainkit
