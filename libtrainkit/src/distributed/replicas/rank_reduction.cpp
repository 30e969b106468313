#include "distributed/replicas/rank_reduction.h"

#include <exception>
#include <string>
#include <utility>

#include "distributed/group/process_group_impl.h"
#include "distributed/replicas/replica_tools.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {

void RankReduction::bind(torch::nn::Module& model, ReplicaGroup& group) {
  has_collectives_ = bind_replica(model, group, group_.rank());
  buffers_ = replica_buffers(model);
}

void RankReduction::synchronize_buffers() {
  if (!buffers_.empty()) throw_status(group_.broadcast(uncounted(buffers_), 0, "broadcast of the buffers"));
}

bool RankReduction::begin_phase(size_t phase) {
  phase_ = phase;
  if (of_phases_.size() <= phase) of_phases_.resize(phase + 1);
  return of_phases_[phase].is_set;
}

void RankReduction::run(const DeviceReplicator::Body& body, bool is_last, const ReplicaStrategy::OnSent& on_sent,
                        const GradientSums::Backward& backward) {
  const bool reduces = sums() && (is_last || sums()->reduces_every_run());
  if (reduces) begin(/*sends_buffers=*/is_last);
  group_.impl().at("forward and backward");
  try {
    if (sums()) {
      sums()->run(body, {.reduces = reduces,
                         .is_last = is_last,
                         .has_collectives = has_collectives_,
                         .on_sent = is_last ? on_sent : nullptr,
                         .backward = backward});
    } else if (const at::Tensor loss = body(0); loss.defined()) {
      backward(loss);
    }
  } catch (...) {
    if (group_.impl().is_capturing()) throw;  // the device has run nothing, and the other ranks wait for nothing
    if (reduces) sums()->throw_if_broken();   // names the bucket whose failure made backward throw
    // The other ranks wait in a collective inside the model, which this rank cannot complete.
    if (has_collectives_) group_.leave(std::string(status_from_current_exception().message()));
    if (reduces && !has_collectives_) release_other_ranks();
    throw;
  }
  has_begun_ = false;
}

/// Prepares a step with reduction; every rank calls it before the body.
void RankReduction::begin(bool sends_buffers) {
  has_begun_ = is_used_ = true;
  sums()->begin();
  if (sends_buffers) synchronize_buffers();
  sums()->arrange();
}

void RankReduction::complete(bool contribute, bool records_order) {
  has_begun_ = false;
  sums()->complete(contribute, records_order);
}

/// Sends what the other ranks wait for after a failure here. Ignores errors: the caller reports the first one.
void RankReduction::release_other_ranks() {
  if (sums()->is_complete()) return;
  try {
    complete(/*contribute=*/false);
  } catch (const std::exception&) {  // the process group is unusable now
  }
}

void RankReduction::reduce() {
  if (!sums()) return;
  begin(/*sends_buffers=*/true);
  complete(/*contribute=*/true, /*records_order=*/false);
}

void RankReduction::skip() {
  if (!sums()) return;
  if (!has_begun_) begin(/*sends_buffers=*/true);
  complete(/*contribute=*/false);
}

void RankReduction::abandon() {
  if (sums()) sums()->abandon(/*reduced=*/std::exchange(is_used_, false));
  has_begun_ = false;
}

void RankReduction::rearrange() {
  if (sums()) sums()->rearrange();
}

void RankReduction::forget_sent() {
  if (sums()) sums()->forget_sent();
}

}  // namespace trainkit::detail
