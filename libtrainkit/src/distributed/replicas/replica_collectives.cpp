#include "distributed/replicas/replica_collectives.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <utility>

#include "distributed/replicas/replica_tools.h"

namespace trainkit::detail {
namespace {

/// Number of a round, as the work that ParameterShards waits for.
struct RoundWork final : c10d::Work {
  explicit RoundWork(size_t round) : number(round) {}
  size_t number;
};

}  // namespace

ReplicaCollectives::ReplicaCollectives(const std::vector<at::Device>& devices)
    : replicas_(devices.size()), streams_(devices), next_(devices.size()) {
  streams_.check_available();
}

void ReplicaCollectives::all_reduce(int64_t replica, const at::Tensor& tensor) {
  const auto own = static_cast<size_t>(replica);
  const ShardCollectives::Work work = start(own, tensor, &ReplicaStreams::all_reduce);
  wait(own, static_cast<const RoundWork&>(*work).number);
}

ShardCollectives ReplicaCollectives::of(int64_t replica) {
  const auto own = static_cast<size_t>(replica);
  return {
      .rank = replica,
      .ranks = static_cast<int64_t>(replicas_),
      .reduce_scatter = [this,
                         own](const at::Tensor& buffer) { return start(own, buffer, &ReplicaStreams::reduce_scatter); },
      .all_gather = [this, own](const at::Tensor& buffer) { return start(own, buffer, &ReplicaStreams::all_gather); },
      .wait = [this, own](const ShardCollectives::Work& work,
                          const std::string&) { wait(own, static_cast<const RoundWork&>(*work).number); },
      .all_reduce = [this, replica](const at::Tensor& values) { all_reduce(replica, values); },
      .empty_cache = [] { at::getDeviceAllocator(at::kCUDA)->emptyCache(); }};
}

void ReplicaCollectives::begin() {
  const std::lock_guard lock(mutex_);
  is_aborted_ = false;
  std::fill(next_.begin(), next_.end(), 0);
  for (Round& round : rounds_) {
    round.arrived = 0;
    round.is_launched = false;
  }
}

void ReplicaCollectives::throw_if_aborted() const {
  if (is_aborted_) throw_replica_failed();
}

/// See Note [Collectives of replica threads].
ShardCollectives::Work ReplicaCollectives::start(size_t replica, const at::Tensor& buffer, Collective collective) {
  const std::lock_guard lock(mutex_);
  throw_if_aborted();
  const size_t number = next_[replica]++;
  if (number == rounds_.size()) {
    rounds_.push_back({.buffers = {}, .ready = streams_.make_events(), .ends = streams_.make_events()});
  }
  Round& round = rounds_[number];
  round.buffers.resize(replicas_);
  round.buffers[replica] = buffer;
  streams_.record(replica, round.ready);
  auto work = c10::make_intrusive<RoundWork>(number);
  if (++round.arrived < replicas_) return work;
  streams_.wait_for(round.ready);
  const std::vector<at::Tensor> buffers = std::exchange(round.buffers, {});
  streams_.launch([&] { (streams_.*collective)(buffers); });
  streams_.record_launched(round.ends);
  round.is_launched = true;
  changed_.notify_all();
  return work;
}

void ReplicaCollectives::wait(size_t replica, size_t number) {
  std::unique_lock lock(mutex_);
  Round& round = rounds_[number];
  changed_.wait(lock, [&] { return is_aborted_ || round.is_launched; });
  if (!round.is_launched) throw_if_aborted();
  streams_.block(replica, round.ends);
}

void ReplicaCollectives::abort() {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  changed_.notify_all();
}

void ReplicaCollectives::abandon() {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  for (Round& round : rounds_) round.buffers.clear();
  streams_.join();
}

void ReplicaCollectives::all_reduce(const std::vector<at::Tensor>& values) {
  TORCH_CHECK(values.size() == replicas_, "the optimizer updates one of ", replicas_,
              " copies of the weights, which TrainStep clips and unscales together");
  streams_.wait_for_devices();
  streams_.launch([&] { streams_.all_reduce(values); });
  streams_.join();
}

}  // namespace trainkit::detail
