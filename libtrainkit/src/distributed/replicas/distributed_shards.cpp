// The parts of Distributed for a divided training state (Sharding).
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "distributed/group/rendezvous.h"
#include "distributed/replicas/distributed.h"
#include "distributed/replicas/replica_tools.h"

namespace trainkit::detail {
namespace {

/// Sends `part` to rank 0, which gets the parts of all ranks in one tensor; the others get an undefined one.
at::Tensor gather(c10d::Backend& group, int64_t rank, int64_t ranks, const at::Tensor& part) {
  if (ranks == 1) return part;
  std::vector<at::Tensor> inputs{part};
  std::vector<std::vector<at::Tensor>> outputs;
  at::Tensor all;
  if (rank == 0) {
    all = at::empty({ranks * part.numel()}, part.options());
    outputs.push_back(all.chunk(ranks));
  }
  try {
    group.gather(outputs, inputs, {})->wait();
  } catch (const std::exception&) {
    throw_status(
        distributed_error("dist.peer", "", "a rank was lost while the first rank gathered the parts of a checkpoint"));
  }
  return all;
}

/// Sends `own` to all ranks and returns theirs, as rows.
at::Tensor exchange(c10d::Backend& group, int64_t ranks, const at::Tensor& own) {
  const at::Tensor all = at::empty({ranks, own.numel()}, own.options());
  std::vector<at::Tensor> inputs{own};
  std::vector<std::vector<at::Tensor>> outputs{all.unbind()};
  try {
    group.allgather(outputs, inputs)->wait();
  } catch (const std::exception&) {
    throw_status(distributed_error("dist.peer", "", "a rank was lost while the ranks wrote a checkpoint"));
  }
  return all;
}

}  // namespace

void Distributed::divide_parameters(const std::function<bool(const at::Tensor&)>& is_whole) {
  if (shards_ || options_.sharding == Sharding::kNone) return;
  follow_model();  // layers that were frozen since create()
  if (trained_.empty()) return;
  shards_ = std::make_unique<ParameterShards>(tensors_of(trained_), is_whole, options_, shard_collectives());
}

ShardCollectives Distributed::shard_collectives() {
  ProcessGroup::Impl& group = ranks();
  const auto side = group.make_side_group();
  return {.rank = group.rank,
          .ranks = group.world_size,
          .reduce_scatter = [&group](const at::Tensor& buffer) { return group.reduce_scatter(buffer); },
          .all_gather = [&group](const at::Tensor& buffer) { return group.all_gather(buffer); },
          .wait =
              [this, &group](const ShardCollectives::Work& work, const std::string& what) {
                group.at(what);
                throw_status(group.wait(work, what, sent_->started));
              },
          .all_reduce =
              [this](const at::Tensor& values) {
                sent_->started = std::chrono::steady_clock::now();
                throw_status(process_group_->all_reduce(values, "allreduce(values of the shards)"));
              },
          .gather_on_host = [side, rank = group.rank, ranks = group.world_size](
                                const at::Tensor& part) { return gather(*side, rank, ranks, part); },
          .exchange_on_host = [side,
                               ranks = group.world_size](const at::Tensor& own) { return exchange(*side, ranks, own); },
          .share = [&group](const at::Tensor& buffer) { group.share(buffer); },
          .empty_cache = device_.is_cpu() ? std::function<void()>()
                                          : [type = device_.type()] { at::getDeviceAllocator(type)->emptyCache(); }};
}

/// Backward of a micro-batch, perhaps the last of a step, whose gradients go to the shards; `loss` is undefined if this
/// rank has no rows.
void Distributed::backward_of_shards(const at::Tensor& loss, bool is_last) {
  sent_->started = std::chrono::steady_clock::now();
  if (loss.defined()) loss.backward();
  const auto end = std::chrono::steady_clock::now();
  shards_->reduction().end(/*contribute=*/true);
  add_reduction_since(end);
  const auto missing = loss.defined() && is_last ? shards_->reduction().without_gradient() : std::nullopt;
  TORCH_CHECK_VALUE(!missing, "the loss did not reach ", trained_[missing.value_or(0)].first,
                    ": sharding needs a gradient of every trained parameter");
}

}  // namespace trainkit::detail
