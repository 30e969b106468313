#include "train/agreement/host_agreement.h"

#include <absl/status/statusor.h>

#include <chrono>
#include <exception>
#include <utility>

namespace trainkit::detail {

HostAgreement::HostAgreement(ReplicaStrategy& devices, StepsInFlight& in_flight)
    : Agreement(in_flight), devices_(devices), consensus_(*devices.process_group()) {}

bool HostAgreement::can_retry() const { return group().usable() && !consensus_.sent(); }

void HostAgreement::send(int64_t step, double weight, const std::string& reason) {
  vote_.weight = weight;
  vote_.reason = reason;
  vote_.graphs = graphs_vote();
  consensus_.send(step, vote_);
  vote_ = StepVote();
}

bool HostAgreement::fail(int64_t step, const Failure& failure) {
  verdict_ = StepVerdict();
  try {
    tell_others(step, failure);
  } catch (const std::exception&) {
    // The group has failed as well. The caller reports the first error.
  }
  const bool retry = failure.again && verdict_.retry;
  if (retry) repeat_requests();
  return retry;
}

void HostAgreement::tell_others(int64_t step, const Failure& failure) {
  if (!group().usable()) return;
  if (consensus_.sent()) {
    // Too late to vote: the others continue until their next exchange, see Note [Votes of a step].
    receive();
    return group().leave(failure.reason);
  }
  if (!failure.reduced) devices_.skip_reduction();
  vote_.failed = !failure.again;
  vote_.out_of_memory = failure.again;
  send(step, failure.weight, failure.reason);
  receive();
}

Agreement::Outcome HostAgreement::settle(int64_t step, double weight, double /*expected*/) {
  const auto start = std::chrono::steady_clock::now();
  if (!consensus_.sent()) send(step, weight);
  receive();
  time_.add_since(start);
  if (verdict_.ok()) return Outcome::kUpdate;
  if (!verdict_.retry) return Outcome::kFailed;
  repeat_requests();
  return Outcome::kRetry;
}

}  // namespace trainkit::detail
