// Steps of several ranks that agree on their devices, so that each rank's step can be a CUDA graph.
#include <absl/status/statusor.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "distributed/agreement/device_votes.h"
#include "distributed/agreement/graph_ranks.h"
#include "train/graph/step_graphs.h"
#include "train/step/steps_in_flight.h"
#include "train/step/train_step_parts.h"

namespace trainkit {
namespace {

// Note [Graphs of several ranks]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// At first the hosts agree on each step, and every rank warms up and traces its kinds of steps. Their votes say whether
// all kinds of a rank are steady. When all ranks say so in one step, votes_on_device_ becomes true on all of them, and
// steps are captured and replayed. It becomes false again on all ranks two steps after one of them votes otherwise: as
// a step must be compared with its graph, as weights have moved, or as this rank cannot continue with graphs.
//
// While the devices agree, every rank starts the same collectives in the same order: buffers, buckets of gradients,
// votes, then those of the update (norms, weights of shards). A graph has them inside. A rank whose batch has another
// shape runs the step eagerly, and while it computes nobody can tell it to retry, nor can it tell others. It therefore
// computes all gradients before its first collective (reduces_later): if memory runs out, it splits the step alone.
// With Sharding::kGradients and with SyncBatchNorm layers that synchronise, micro-batches contain collectives
// (meets_every_run): there it fails instead.
//
// A rank that fails takes part in two steps with zeros (take_part_as_failed). The devices skip both updates, and by
// then every host has read the first vote. With SyncBatchNorm it cannot take part, and leaves. A rank that is lost
// stops the devices; the hosts notice it while they wait for the step before the last one (GraphRanks::check). What the
// devices have queued by then computes with what was received, so weights are not defined afterwards. Checkpoints are
// written after confirm(), and thus whole.
//
// NCCL may mix ranks that replay a collective with others that start it, unless it registers the buffers of graphs
// (NCCL_GRAPH_REGISTER), for which all ranks must capture.

/// Returns the time until the host looks again whether the device has finished a step. It is a step ahead, so a quarter
/// of the time that it has waited is early enough.
std::chrono::microseconds next_look(detail::StepClock::duration waited) {
  using std::chrono::microseconds;
  return std::clamp(std::chrono::duration_cast<microseconds>(waited / 4), microseconds(20), microseconds(2000));
}

/// Returns why the votes of a step contradict each other: those of a lost rank are missing, or else `problem`. The
/// device may end the step before the watch notices the loss.
absl::Status loss_or(detail::GraphRanks& ranks, const absl::Status& problem) {
  constexpr std::chrono::seconds kPatience{5};
  const detail::StepClock::time_point started = detail::StepClock::now();
  while (detail::StepClock::now() - started < kPatience) {
    const absl::Status lost = ranks.check("a step on the devices", started);
    if (!lost.ok()) return lost;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return problem;
}

}  // namespace

bool TrainStep::meets_every_run() const { return reduces_every_run() || collective_backward_; }

bool TrainStep::reduces_later() const { return votes_on_device_ && !capturing_ && !meets_every_run(); }

void TrainStep::add_graphs_to_vote() {
  using Graphs = StepVote::Graphs;
  vote_->graphs = !uses_graphs() ? Graphs::kNever : graphs_->are_steady() ? Graphs::kReady : Graphs::kNotNow;
}

/// Follows a verdict on the ranks' graphs, between two steps.
void TrainStep::follow(const StepVerdict& verdict) {
  if (verdict.without_graphs && graphs_->active()) {
    graphs_->give_up("rank " + std::to_string(*verdict.without_graphs) + " runs its steps without a CUDA graph");
  }
  const bool before = std::exchange(votes_on_device_, verdict.graphs_ready);
  if (before && !votes_on_device_) confirm();
  if (before && verdict.without_graphs) graph_ranks_->rearrange();
  if (before || !votes_on_device_) return;
  holds_graphs_ = true;
  graph_ranks_->start_watch();
  votes_->connect();
}

void TrainStep::cast_vote(double weight) {
  vote_->weight = weight;
  add_graphs_to_vote();
  votes_->cast(in_flight_->place(), step_ + 1, *vote_);
  *vote_ = StepVote();
}

/// Bounds the number of queued steps, and reads the votes of the step before the last one.
void TrainStep::wait_for_earlier_step() {
  split_before_ = split_;
  if (runs_beside_ && !uses_graphs()) {
    graph_replicas_->use_current_streams();
    runs_beside_ = false;
  }
  const size_t place = in_flight_->place();
  votes_ && votes_->pending(place) ? read_votes(place) : in_flight_->begin();
}

void TrainStep::await(size_t place) const {
  const detail::StepClock::time_point started = detail::StepClock::now();
  while (!in_flight_->is_ready(place)) {
    const absl::Status lost = graph_ranks_->check("a step on the devices", started);
    if (!lost.ok()) throw absl::BadStatusOrAccess(lost);
    std::this_thread::sleep_for(next_look(detail::StepClock::now() - started));
  }
}

void TrainStep::read_votes(size_t place) {
  await(place);
  const int64_t step = *votes_->pending(place);
  const absl::StatusOr<StepVerdict> read = votes_->read(place);
  if (!read.ok()) throw absl::BadStatusOrAccess(loss_or(*graph_ranks_, read.status()));
  const StepVerdict& verdict = *read;
  if (!verdict.ok()) throw absl::BadStatusOrAccess(detail::failed_elsewhere(verdict, step));
  late_->stop = std::max(late_->stop, verdict.stop);
  late_->save |= verdict.save;
  late_->weight = verdict.weight;
  if (votes_on_device_) follow(verdict);
}

void TrainStep::confirm() {
  if (!votes_) return;
  for (size_t i = 0; i < detail::DeviceVotes::kPlaces; ++i) {
    const size_t place = (in_flight_->place() + i) % detail::DeviceVotes::kPlaces;  // the earlier step first
    if (votes_->pending(place)) read_votes(place);
  }
}

/// Completes *verdict_ at the end of a step by what is known of earlier steps.
void TrainStep::end_verdict() {
  if (!votes_) return;
  if (votes_on_device_) {
    if (!metrics_.world_weight_on_device.defined()) metrics_.world_weight_on_device = votes_->weight().clone();
    votes_->collect(in_flight_->place());
    *verdict_ = StepVerdict{.weight = late_->weight};
    split_ = split_before_;  // the other ranks do not know of this rank's retries
  } else {
    late_->weight = verdict_->weight;
    follow(*verdict_);
  }
  verdict_->stop = std::max(verdict_->stop, std::exchange(late_->stop, 0));
  verdict_->save |= std::exchange(late_->save, false);
}

void TrainStep::set_step(int64_t step) {
  confirm();
  *late_ = StepVerdict{.weight = late_->weight};  // requests of the steps that are left behind
  step_ = step;
}

/// Takes part in this step and the next one without rows, so that the devices of the other ranks skip them and their
/// hosts learn the reason. Ignores errors: the caller reports the first one.
void TrainStep::take_part_as_failed(const std::string& reason, bool reduced) {
  try {
    for (size_t i = 0; i < detail::DeviceVotes::kPlaces && !collective_backward_; ++i) {
      const size_t place = in_flight_->place();
      if (i > 0) await(place);
      const int64_t runs = reduces_every_run() && i > 0 ? options_.grad_accum_steps * split_ : 1;
      for (int64_t run = 1; run < runs; ++run) devices_.run([](int64_t) { return at::Tensor(); }, false);
      if (i > 0 || !reduced) devices_.skip_reduction();
      votes_->cast(place, step_ + 1 + static_cast<int64_t>(i), {.failed = true, .reason = reason});
      votes_->sum(/*expected_weight=*/0);
      if (shards_) {
        if (scaler_.enabled()) scaler_.scale(votes_->blocked());
        update();  // its collectives; changes nothing
      }
      in_flight_->end(device_list_);
      devices_.abandon_step();
    }
    for (size_t place = 0; place < detail::DeviceVotes::kPlaces && !collective_backward_; ++place) await(place);
  } catch (const std::exception&) {
  }
  if (devices_.process_group()->usable()) devices_.process_group()->leave(reason);
}

}  // namespace trainkit
