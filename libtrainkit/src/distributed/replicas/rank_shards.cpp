#include "distributed/replicas/rank_shards.h"

#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <exception>
#include <optional>

#include "distributed/group/process_group_impl.h"
#include "distributed/group/rendezvous.h"
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

}  // namespace

RankShards::RankShards(ProcessGroup& group, Parameters trained, const std::function<bool(const at::Tensor&)>& is_whole,
                       const DeviceReplicatorOptions& options, TimeSum& time)
    : group_(group),
      trained_(std::move(trained)),
      time_(time),
      shards_(tensors_of(trained_), is_whole, options, collectives(*options.device)) {}

ShardCollectives RankShards::collectives(at::Device device) {
  ProcessGroup::Impl& group = group_.impl();
  const auto side = group.make_side_group();
  return {.rank = group.rank,
          .ranks = group.world_size,
          .reduce_scatter = [&group](const at::Tensor& buffer) { return group.reduce_scatter(buffer); },
          .all_gather = [&group](const at::Tensor& buffer) { return group.all_gather(buffer); },
          .wait =
              [this, &group](const ShardCollectives::Work& work, const std::string& what) {
                group.at(what);
                throw_status(group.wait(work, what, started_));
              },
          .all_reduce =
              [this](const at::Tensor& values) {
                started_ = std::chrono::steady_clock::now();
                throw_status(group_.all_reduce(values, "allreduce(values of the shards)"));
              },
          .gather_on_host = [side, rank = group.rank, ranks = group.world_size](
                                const at::Tensor& part) { return gather(*side, rank, ranks, part); },
          .exchange_on_host = [side](const at::Tensor& own) { return exchange_on_host(*side, own); },
          .share = [&group](const at::Tensor& buffer) { group.share(buffer); },
          .empty_cache = device.is_cpu() ? std::function<void()>()
                                         : [type = device.type()] { at::getDeviceAllocator(type)->emptyCache(); }};
}

void RankShards::begin() { started_ = std::chrono::steady_clock::now(); }

void RankShards::run(const DeviceReplicator::Body& body, const Run& run) {
  shards_.begin(run.reduces, run.on_sent);
  const at::Tensor loss = body(0);  // undefined if this rank has no rows
  begin();
  if (loss.defined()) loss.backward();
  const auto end = std::chrono::steady_clock::now();
  shards_.reduction().end(/*contribute=*/true);
  time_.add_since(end);
  const auto missing = loss.defined() && run.is_last ? shards_.reduction().without_gradient() : std::nullopt;
  TORCH_CHECK_VALUE(!missing, "the loss did not reach ", trained_[missing.value_or(0)].first,
                    ": sharding needs a gradient of every trained parameter");
}

void RankShards::complete(bool contribute, bool /*records_order*/) {
  if (is_complete()) shards_.begin(/*reduces=*/true);
  shards_.reduction().end(contribute);
}

}  // namespace trainkit::detail
