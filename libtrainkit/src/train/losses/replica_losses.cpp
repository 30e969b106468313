#include "train/losses/replica_losses.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/libtorch/autograd_nodes.h"
#include "distributed/batch_norm/batch_norm_hooks.h"
#include "train/losses/counted_rows.h"
#include "train/losses/loss_weights.h"
#include "train/losses/nonfinite.h"
#include "train/losses/shared_scope.h"
#include "train/losses/user_mistakes.h"
#include "train/losses/with_precision.h"

namespace trainkit::detail {
namespace {

// Note [Replicas that meet]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
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

/// Begins to record the SyncBatchNorm layers of a replica, see zero_loss(); `adds`: to those of the shared tensors.
void begin_recording(torch::nn::Module& module, bool counts_rows, bool adds) {
  for (const auto& part : module.modules()) {
    if (auto* norm = part->as<SyncBatchNormImpl>()) BatchNormHooks::begin_recording(*norm, counts_rows, adds);
  }
}

/// The nodes that a backward from `loss` may reach.
std::unordered_set<const torch::autograd::Node*> nodes_below(const at::Tensor& loss) {
  std::unordered_set<const torch::autograd::Node*> found;
  std::vector<const torch::autograd::Node*> open = {torch::autograd::impl::gradient_edge(loss).function.get()};
  while (!open.empty()) {
    const torch::autograd::Node* node = open.back();
    open.pop_back();
    if (!node || !found.insert(node).second) continue;
    for (const torch::autograd::Edge& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return found;
}

/// Returns a loss whose backward gives the recorded SyncBatchNorm layers a part in the sums of the replicas, and the
/// gradient 0 to the parameters before them, or (`to_all`) to all parameters. Undefined if there is nothing to do.
/// `loss` is the replica's own. If it `has_shared` tensors, the layers are those of its graph: the ones of the shared
/// tensors too, unless it uses them detached.
at::Tensor zero_loss(const torch::nn::Module& module, const at::Tensor& loss, bool to_all, bool has_shared) {
  torch::autograd::edge_list to;
  std::unordered_set<const torch::autograd::Node*> below;
  if (has_shared && loss.requires_grad()) below = nodes_below(loss);
  for (const auto& part : module.modules()) {
    const auto* norm = part->as<SyncBatchNormImpl>();
    if (!norm) continue;
    for (const auto& recorded : BatchNormHooks::nodes(*norm)) {
      NodePointer<torch::autograd::Node> node = recorded.lock();
      if (has_shared && (!node || !below.contains(node.get()))) continue;
      if (!node) return loss * 0;  // within an activation checkpoint
      to.emplace_back(std::move(node), 0);
    }
  }
  for (const at::Tensor& parameter : module.parameters()) {
    if (to_all && parameter.requires_grad()) to.push_back(torch::autograd::impl::gradient_edge(parameter));
  }
  if (to.empty()) return {};
  at::Tensor zero = at::zeros({}, loss.options());
  torch::autograd::create_gradient_edge(zero, make_node<ZeroRoot>(std::move(to)));
  return zero;
}

}  // namespace

ReplicaLosses::ReplicaLosses(ReplicaStrategy& devices, const TrainStepOptions& options, LossWeights& weights,
                             GradScaler& scaler)
    : devices_(devices),
      precision_(options.precision),
      finds_nonfinite_(options.skip_nonfinite),
      weights_(weights),
      scaler_(scaler) {
  for (const auto& part : devices.module()->modules()) {
    const auto* norm = part->as<SyncBatchNormImpl>();
    meet_ |= norm && norm->options.synchronize && devices.world_replicas() > 1;
  }
}

void ReplicaLosses::begin(const LossFunction& loss) {
  const int64_t replicas = devices_.replicas();
  results_.resize(static_cast<size_t>(replicas));
  if (replicas > 1) losses_ = loss.for_replicas(replicas);
}

at::Tensor ReplicaLosses::scaled_loss(int64_t replica, const Part& part) {
  const auto i = static_cast<size_t>(replica);
  const Batch shard = shard_of(part.batch, replica);
  torch::nn::Module& module = *devices_.module(replica);
  if (meet_) begin_recording(module, /*counts_rows=*/shard.size() > shard.padding_rows(), /*adds=*/part.shared);
  ReplicaResult& result = results_[i];
  result = run(replica, shard, devices_.replicas() > 1 ? *losses_[i] : part.loss, part);
  if (!result.output || (result.share == 0 && !meet_)) return {};
  const at::Tensor& value = result.output->loss;
  at::Tensor scaled = result.share == 0     ? zero_loss(module, value, devices_.needs_all_gradients(), part.shared)
                      : result.share == 1.0 ? value
                                            : value * result.share;
  if (!scaler_.enabled() || !scaled.defined()) return scaled;
  const std::lock_guard lock(scaler_mutex_);
  return scaler_.scale(scaled);
}

/// Returns the rows of `replica` on its device; shares differ by one row at most. A replica without rows gets one that
/// does not count if the others wait for it in SyncBatchNorm.
Batch ReplicaLosses::shard_of(const Batch& batch, int64_t replica) {
  const at::Device device = devices_.device(replica);
  const int64_t replicas = devices_.replicas();
  const bool has_rows = batch.size() * replica / replicas < batch.size() * (replica + 1) / replicas;
  if (!has_rows && meet_) return uncounted_row(batch, device);
  if (device.is_cpu()) return batch.shard(replica, replicas, device);
  const auto start = std::chrono::steady_clock::now();
  Batch shard = batch.shard(replica, replicas, device);
  if (replica == 0) copy_time_.add_since(start);  // the others copy concurrently
  return shard;
}

ReplicaResult ReplicaLosses::run(int64_t replica, const Batch& shard, const LossFunction& loss, const Part& part) {
  ReplicaResult result;
  const SharedScope shared(part.shared ? &(*part.shared)[static_cast<size_t>(replica)] : nullptr);
  try {
    if (shard.size() > 0) {
      result.output = with_precision(devices_, replica, precision_,
                                     [&] { return loss(*devices_.module(replica), counted_rows(shard)); });
      check_output(*result.output, part.step);
      result.weight = counted_weight(shard, *result.output);
      if (result.weight > 0) check_requires_grad(*result.output, *devices_.module(replica), part.step);
    }
  } catch (...) {
    weights_.take_part(replica);
    throw;
  }
  const LossWeights::Share share = weights_.share_of(replica, result.weight, part.split);
  result.share = share.share;
  result.unit = share.unit;
  if (finds_nonfinite_ && result.weight > 0 && !is_finite_on_host(result.output->loss)) {
    result.nonfinite = first_nonfinite(*devices_.module(replica), shard, result.output->loss);
    if (result.nonfinite.empty()) result.nonfinite = "the loss is not finite";
  }
  return result;
}

std::vector<Shared> ReplicaLosses::share(const Batch& batch, const SharedFunction& function) {
  std::vector<Shared> shared(static_cast<size_t>(devices_.replicas()));
  const auto forward = [&](int64_t replica) {
    const Batch shard = shard_of(batch, replica);
    const bool counts_rows = shard.size() > shard.padding_rows();
    if (meet_) begin_recording(*devices_.module(replica), counts_rows, /*adds=*/false);
    if (shard.size() > 0) {
      shared[static_cast<size_t>(replica)] = with_precision(
          devices_, replica, precision_, [&] { return function(*devices_.module(replica), counted_rows(shard)); });
    }
    return at::Tensor();  // no backward follows
  };
  devices_.run(forward, /*reduce_gradients=*/false);
  return shared;
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

}  // namespace trainkit::detail
