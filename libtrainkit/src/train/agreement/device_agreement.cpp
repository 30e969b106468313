#include "train/agreement/device_agreement.h"

#include <absl/status/statusor.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "core/tensors/recorded.h"
#include "distributed/shards/parameter_shards.h"
#include "train/agreement/steps_in_flight.h"
#include "train/graph/step_graphs.h"
#include "train/retry/memory_recovery.h"

namespace trainkit::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// Returns the time until the host looks again whether the device has finished a step. It is a step ahead, so a quarter
/// of the time that it has waited is early enough.
std::chrono::microseconds next_look(Clock::duration waited) {
  using std::chrono::microseconds;
  return std::clamp(std::chrono::duration_cast<microseconds>(waited / 4), microseconds(20), microseconds(2000));
}

/// Returns why the votes of a step contradict each other: those of a lost rank are missing, or else `problem`. The
/// device may end the step before the watch notices the loss.
absl::Status loss_or(GraphRanks& ranks, const absl::Status& problem) {
  constexpr std::chrono::seconds kPatience{5};
  const Clock::time_point started = Clock::now();
  while (Clock::now() - started < kPatience) {
    absl::Status lost = ranks.check("a step on the devices", started);
    if (!lost.ok()) return lost;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return problem;
}

}  // namespace

DeviceAgreement::DeviceAgreement(ReplicaStrategy& devices, StepsInFlight& in_flight, MemoryRecovery& memory,
                                 StepGraphs& graphs, GraphRanks& ranks, bool replicas_meet)
    : HostAgreement(devices, in_flight),
      memory_(memory),
      graphs_(graphs),
      ranks_(ranks),
      votes_(*devices.process_group(), devices.device()),
      replicas_meet_(replicas_meet),
      reduces_every_run_(devices.shards() && devices.shards()->reduction().reduces_every_run()),
      meets_every_run_(reduces_every_run_ || replicas_meet) {}

/// Reads the votes of the step before the last one.
void DeviceAgreement::begin_step() {
  const size_t place = in_flight_.place();
  votes_.pending(place) ? read_votes(place) : in_flight_.begin();
}

bool DeviceAgreement::can_retry() const {
  if (on_devices_ && meets_every_run_) return false;  // the other ranks have received a part of it
  return HostAgreement::can_retry();
}

/// If some ranks may hold graphs, all drop them first.
bool DeviceAgreement::splits_retry(bool freed) {
  if (on_devices_) return !freed;
  const bool drops = std::exchange(some_hold_graphs_, false);
  if (drops) memory_.drop_graphs();
  return !drops;
}

bool DeviceAgreement::reduces_later() const { return on_devices_ && !is_capturing_ && !meets_every_run_; }

void DeviceAgreement::send(int64_t step, double weight) {
  if (!on_devices_) HostAgreement::send(step, weight);
}

StepVote::Graphs DeviceAgreement::graphs_vote() const {
  using Graphs = StepVote::Graphs;
  return !graphs_.active() ? Graphs::kNever : graphs_.are_steady() ? Graphs::kReady : Graphs::kNotNow;
}

void DeviceAgreement::cast(int64_t step, double weight) {
  vote_.weight = weight;
  vote_.graphs = graphs_vote();
  votes_.cast(in_flight_.place(), step, vote_);
  vote_ = StepVote();
}

bool DeviceAgreement::fail(int64_t step, const Failure& failure) {
  if (!on_devices_) return HostAgreement::fail(step, failure);
  verdict_ = StepVerdict();
  if (!failure.again) take_part_as_failed(step, failure);
  return failure.again;
}

Agreement::Outcome DeviceAgreement::settle(int64_t step, double weight, double expected) {
  if (!on_devices_) return HostAgreement::settle(step, weight, expected);
  const ExchangeScope agreement;
  if (!is_capturing_) cast(step, weight);
  votes_.sum(expected);
  return Outcome::kUpdate;
}

bool DeviceAgreement::nothing_counts() const { return !on_devices_ && HostAgreement::nothing_counts(); }

void DeviceAgreement::correct(const std::vector<Optimizer*>& optimizers, double expected,
                              MemoryRecovery& memory) const {
  if (!on_devices_) return HostAgreement::correct(optimizers, expected, memory);
  const ExchangeScope agreement;
  for (const Optimizer* optimizer : optimizers) votes_.correct(optimizer->gradients());
}

void DeviceAgreement::await(size_t place) const {
  const Clock::time_point started = Clock::now();
  while (!in_flight_.is_ready(place)) {
    const absl::Status lost = ranks_.check("a step on the devices", started);
    if (!lost.ok()) throw absl::BadStatusOrAccess(lost);
    std::this_thread::sleep_for(next_look(Clock::now() - started));
  }
}

void DeviceAgreement::read_votes(size_t place) {
  await(place);
  const int64_t step = *votes_.pending(place);
  const absl::StatusOr<StepVerdict> read = votes_.read(place);
  if (!read.ok()) throw absl::BadStatusOrAccess(loss_or(ranks_, read.status()));
  const StepVerdict& verdict = *read;
  if (!verdict.ok()) throw absl::BadStatusOrAccess(failed_elsewhere(verdict, step));
  late_.stop = std::max(late_.stop, verdict.stop);
  late_.save |= verdict.save;
  late_.weight = verdict.weight;
  if (on_devices_) follow(verdict);
}

/// Follows a verdict on the ranks' graphs, between two steps.
void DeviceAgreement::follow(const StepVerdict& verdict) {
  if (verdict.without_graphs && graphs_.active()) {
    graphs_.give_up("rank " + std::to_string(*verdict.without_graphs) + " runs its steps without a CUDA graph");
  }
  const bool before = std::exchange(on_devices_, verdict.graphs_ready);
  if (before && !on_devices_) confirm();
  if (before && verdict.without_graphs) ranks_.rearrange();
  if (before || !on_devices_) return;
  some_hold_graphs_ = true;
  ranks_.start_watch();
  votes_.connect();
}

void DeviceAgreement::confirm() {
  for (size_t i = 0; i < DeviceVotes::kPlaces; ++i) {
    const size_t place = (in_flight_.place() + i) % DeviceVotes::kPlaces;  // the earlier step first
    if (votes_.pending(place)) read_votes(place);
  }
}

void DeviceAgreement::end_step(StepMetrics& metrics) {
  if (on_devices_) {
    if (!metrics.world_weight_on_device.defined()) metrics.world_weight_on_device = votes_.weight().clone();
    votes_.collect(in_flight_.place());
    verdict_ = StepVerdict{.weight = late_.weight};
  } else {
    late_.weight = verdict_.weight;
    follow(verdict_);
  }
  verdict_.stop = std::max(verdict_.stop, std::exchange(late_.stop, 0));
  verdict_.save |= std::exchange(late_.save, false);
  Agreement::end_step(metrics);
}

void DeviceAgreement::leave_steps() {
  confirm();
  late_ = StepVerdict{.weight = late_.weight};
}

void DeviceAgreement::begin_capture() {
  is_capturing_ = true;
  HostAgreement::begin_capture();
  ranks_.begin_capture();
}

void DeviceAgreement::end_capture() {
  is_capturing_ = false;
  HostAgreement::end_capture();
  ranks_.end_capture();
}

/// Takes part in this step and the next one without rows, so that the devices of the other ranks skip them and their
/// hosts learn the reason. Ignores errors: the caller reports the first one.
void DeviceAgreement::take_part_as_failed(int64_t step, const Failure& failure) {
  try {
    for (size_t i = 0; i < DeviceVotes::kPlaces && !replicas_meet_; ++i) {
      const size_t place = in_flight_.place();
      if (i > 0) await(place);
      const int64_t runs = reduces_every_run_ && i > 0 ? failure.runs : 1;
      for (int64_t run = 1; run < runs; ++run) devices_.run([](int64_t) { return at::Tensor(); }, false);
      if (i > 0 || !failure.reduced) devices_.skip_reduction();
      votes_.cast(place, step + static_cast<int64_t>(i), {.failed = true, .reason = failure.reason});
      votes_.sum(/*expected_weight=*/0);
      if (devices_.shards()) failure.skipped_update(votes_.blocked());
      in_flight_.end();
      devices_.abandon_step();
    }
    for (size_t place = 0; place < DeviceVotes::kPlaces && !replicas_meet_; ++place) await(place);
  } catch (const std::exception&) {
  }
  if (group().usable()) group().leave(failure.reason);
}

}  // namespace trainkit::detail
