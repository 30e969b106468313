#include "distributed/agreement/step_consensus.h"

#include <ATen/ops/zeros.h>

#include <cmath>

#include "distributed/group/process_group_impl.h"
#include "distributed/group/rendezvous.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

// Note [Step consensus]
// ~~~~~~~~~~~~~~~~~~~~~
// One all-reduce (sum) over 4 + ranks doubles replaces several collectives. Element 0 is the weight, element 1 the
// number of ranks whose step succeeded. Elements 2 and 3 are the step and its square: sum(step) == n * step and
// sum(step^2) == n * step^2 hold together only if all steps are equal, which detects a rank at a different step. The
// remaining elements have one writer each, so their sum is the value of that rank: flags plus kStop * signal. Steps and
// flags are integers below 2^53, hence exact in float64.
//
// The vote is sent while gradients are reduced (send) and read afterwards (wait), which hides its latency. Every rank
// votes in every step, also after a failure; a rank without a vote would leave the others waiting in the all-reduce.
// The reason of a failure is text and goes through the store: it is set before the vote is sent, and read after the
// vote has been received, so it is always present.

constexpr int64_t kStep = 2, kStepSquared = 3, kFirstRank = 4;
constexpr int kSave = 1, kOutOfMemory = 2, kFailed = 4, kReady = 8, kNever = 16, kStop = 32;

/// Returns the step modulo 2^20, so that sums of squares stay below 2^53 and are exact.
double step_residue(int64_t step) { return static_cast<double>(step % (1 << 20)); }

std::string reason_key(int64_t step, int64_t rank) {
  return "failed/" + std::to_string(step) + "/" + std::to_string(rank);
}

int flags_of(const StepVote& vote) {
  using Graphs = StepVote::Graphs;
  return (vote.save ? kSave : 0) + (vote.out_of_memory ? kOutOfMemory : 0) + (vote.failed ? kFailed : 0) +
         (vote.graphs == Graphs::kReady ? kReady : 0) + (vote.graphs == Graphs::kNever ? kNever : 0) +
         kStop * vote.stop;
}

constexpr std::string_view kWhat = "the agreement";

}  // namespace

namespace detail {

int64_t Ballot::size(int64_t ranks) { return kFirstRank + ranks; }

void Ballot::write(double* numbers, ProcessGroup& group, int64_t step, const StepVote& vote) {
  const bool failed = vote.failed || vote.out_of_memory;
  std::fill_n(numbers, size(group.world_size()), 0.0);
  const double place = step_residue(step);
  numbers[kWeight] = vote.weight;
  numbers[kSucceeded] = failed ? 0 : 1;
  numbers[kStep] = place;
  numbers[kStepSquared] = place * place;
  numbers[kFirstRank + group.rank()] = flags_of(vote);
  if (failed) group.impl().store().set(reason_key(step, group.rank()), vote.reason);
}

absl::StatusOr<StepVerdict> Ballot::read(const double* numbers, ProcessGroup& group, int64_t step) try {
  const double place = step_residue(step);
  const auto ranks = static_cast<double>(group.world_size());
  if (numbers[kStep] != ranks * place || numbers[kStepSquared] != ranks * place * place) {
    return distributed_error("dist.order", "step", "ranks are not at the same step",
                             "a mean of " + std::to_string(numbers[kStep] / ranks),
                             std::to_string(static_cast<int64_t>(place)) + " on all ranks");
  }
  StepVerdict verdict{.weight = numbers[kWeight], .graphs_ready = true};
  bool for_good = false;
  for (int64_t rank = 0; rank < group.world_size(); ++rank) {
    const int said = static_cast<int>(numbers[kFirstRank + rank]);
    verdict.stop = std::max(verdict.stop, said / kStop);
    verdict.save |= (said & kSave) != 0;
    verdict.graphs_ready &= (said & kReady) != 0;
    if ((said & kNever) && !verdict.without_graphs) verdict.without_graphs = rank;
    if (said & kOutOfMemory) verdict.out_of_memory.push_back(rank);
    if (said & (kFailed | kOutOfMemory)) verdict.failed.push_back(rank);
    for_good |= (said & kFailed) != 0;
  }
  verdict.retry = !verdict.ok() && !for_good;
  if (!verdict.ok()) verdict.reason = group.impl().store().get_to_str(reason_key(step, verdict.failed.front()));
  return verdict;
} catch (const std::exception& error) {  // the store
  return group.impl().failure(kWhat, std::chrono::steady_clock::now(), error.what());
}

}  // namespace detail

struct StepConsensus::Sent {
  int64_t step = 0;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  c10::intrusive_ptr<c10d::Work> work = nullptr;
  std::string error = {};  // set if there is no work
};

StepConsensus::StepConsensus(ProcessGroup& group)
    : group_(group), numbers_(at::zeros({detail::Ballot::size(group.world_size())}, at::kDouble)) {}

StepConsensus::~StepConsensus() = default;

void StepConsensus::send(int64_t step, const StepVote& vote) {
  TORCH_CHECK(!sent_, "wait() was not called after the vote on step ", sent_->step);
  sent_ = std::make_unique<Sent>(Sent{.step = step});
  group_.set_step(step);
  try {
    detail::Ballot::write(numbers_.mutable_data_ptr<double>(), group_, step, vote);
    sent_->work = group_.impl().all_reduce(numbers_);
  } catch (const std::exception& error) {  // the store, or a connection
    sent_->error = error.what();
  }
}

absl::StatusOr<StepVerdict> StepConsensus::wait() {
  TORCH_CHECK(sent_, "wait() was called without send()");
  const auto sent = std::move(sent_);
  group_.impl().at(kWhat);
  if (!sent->work) return group_.impl().failure(kWhat, sent->started, sent->error);
  TRAINKIT_RETURN_IF_ERROR(group_.impl().wait(sent->work, kWhat, sent->started));
  return detail::Ballot::read(numbers_.const_data_ptr<double>(), group_, sent->step);
}

}  // namespace trainkit
