#include "distributed/step_consensus.h"

#include <ATen/ops/zeros.h>

#include <cmath>

#include "distributed/process_group_impl.h"
#include "distributed/rendezvous.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

// Note [Step consensus]
// ~~~~~~~~~~~~~~~~~~~~~
// One all-reduce (sum) over 3 + ranks doubles replaces several collectives. Element 0 is the weight. Elements 1 and 2
// are the step and its square: sum(step) == n * step and sum(step^2) == n * step^2 hold together only if all steps are
// equal, which detects a rank at a different step. The remaining elements have one writer each, so their sum is the
// value of that rank: flags plus kStop * signal. Steps and flags are integers below 2^53, hence exact in float64.
//
// The vote is sent while gradients are reduced (send) and read afterwards (wait), which hides its latency. Every rank
// votes in every step, also after a failure; a rank without a vote would leave the others waiting in the all-reduce.
// The reason of a failure is text and goes through the store: it is set before the vote is sent, and read after the
// vote has been received, so it is always present.

// Positions of the sums; see Note [Step consensus].
constexpr int64_t kWeight = 0, kStep = 1, kStepSquared = 2, kFirstRank = 3;
constexpr int kSave = 1, kOutOfMemory = 2, kFailed = 4, kStop = 8;

/// Returns the step modulo 2^20, so that sums of squares stay below 2^53 and are exact.
double step_residue(int64_t step) { return static_cast<double>(step % (1 << 20)); }

std::string reason_key(int64_t step, int64_t rank) {
  return "failed/" + std::to_string(step) + "/" + std::to_string(rank);
}

constexpr std::string_view kWhat = "the agreement";

}  // namespace

struct StepConsensus::Sent {
  int64_t step = 0;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  c10::intrusive_ptr<c10d::Work> work = nullptr;
  std::string error = {};  // set if there is no work
};

StepConsensus::StepConsensus(ProcessGroup& group)
    : group_(group), numbers_(at::zeros({kFirstRank + group.world_size()}, at::kDouble)) {}

StepConsensus::~StepConsensus() = default;

void StepConsensus::send(int64_t step, const StepVote& vote) {
  TORCH_CHECK(!sent_, "wait() was not called after the vote on step ", sent_->step);
  sent_ = std::make_unique<Sent>(Sent{.step = step});
  double* numbers = numbers_.mutable_data_ptr<double>();
  std::fill_n(numbers, numbers_.numel(), 0.0);
  const double place = step_residue(step);
  numbers[kWeight] = vote.weight;
  numbers[kStep] = place;
  numbers[kStepSquared] = place * place;
  numbers[kFirstRank + group_.rank()] = (vote.save ? kSave : 0) + (vote.out_of_memory ? kOutOfMemory : 0) +
                                        (vote.failed ? kFailed : 0) + kStop * vote.stop;
  group_.set_step(step);
  try {
    if (vote.failed || vote.out_of_memory) group_.impl().store().set(reason_key(step, group_.rank()), vote.reason);
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
  return read(sent->step);
}

absl::StatusOr<StepVerdict> StepConsensus::read(int64_t step) try {
  const double* numbers = numbers_.const_data_ptr<double>();
  const double place = step_residue(step);
  const auto ranks = static_cast<double>(group_.world_size());
  if (numbers[kStep] != ranks * place || numbers[kStepSquared] != ranks * place * place) {
    return detail::distributed_error("dist.order", "step", "ranks are not at the same step",
                                     "a mean of " + std::to_string(numbers[kStep] / ranks),
                                     std::to_string(static_cast<int64_t>(place)) + " on all ranks");
  }
  StepVerdict verdict{.weight = numbers[kWeight]};
  bool for_good = false;
  for (int64_t rank = 0; rank < group_.world_size(); ++rank) {
    const int said = static_cast<int>(numbers[kFirstRank + rank]);
    verdict.stop = std::max(verdict.stop, said / kStop);
    verdict.save |= (said & kSave) != 0;
    if (said & kOutOfMemory) verdict.out_of_memory.push_back(rank);
    if (said & (kFailed | kOutOfMemory)) verdict.failed.push_back(rank);
    for_good |= (said & kFailed) != 0;
  }
  verdict.retry = !verdict.ok() && !for_good;
  if (!verdict.ok()) verdict.reason = group_.impl().store().get_to_str(reason_key(step, verdict.failed.front()));
  return verdict;
} catch (const std::exception& error) {  // the store
  return group_.impl().failure(kWhat, std::chrono::steady_clock::now(), error.what());
}

}  // namespace trainkit
