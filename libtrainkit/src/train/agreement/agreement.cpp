#include "train/agreement/agreement.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/full.h>
#include <absl/status/statusor.h>

#include <algorithm>
#include <map>
#include <utility>

#include "distributed/replicas/graph_ranks.h"
#include "train/agreement/device_agreement.h"
#include "train/agreement/host_agreement.h"
#include "train/agreement/steps_in_flight.h"
#include "train/retry/memory_recovery.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

/// Multiplies `gradients` in place. On the CPU a scalar becomes a tensor in each operation, so it is converted once per
/// dtype. All factors are allocated before the first gradient changes, see Note [Stages of an update].
void scale(const std::vector<at::Tensor>& gradients, double factor) {
  if (gradients.empty()) return;
  if (!gradients.front().is_cpu()) return at::_foreach_mul_(gradients, factor);
  std::map<at::ScalarType, at::Tensor> factors;
  for (const at::Tensor& gradient : gradients) {
    at::Tensor& number = factors[gradient.scalar_type()];
    if (!number.defined()) number = at::full({}, factor, gradient.options());
  }
  for (const at::Tensor& gradient : gradients) at::Tensor(gradient).mul_(factors[gradient.scalar_type()]);
}

/// One rank, which follows its own vote.
class AloneAgreement final : public Agreement {
 public:
  using Agreement::Agreement;
  void send(int64_t /*step*/, double weight) override {
    const StepVote vote = std::exchange(vote_, {});
    verdict_ = {.stop = vote.stop, .save = vote.save, .weight = weight};
  }
  bool fail(int64_t /*step*/, const Failure& failure) override {
    verdict_ = {};
    return failure.again;
  }
  Outcome settle(int64_t step, double weight, double /*expected*/) override {
    send(step, weight);
    return Outcome::kUpdate;
  }
};

}  // namespace

void Agreement::request_stop(int signal) { vote_.stop = std::max(vote_.stop, signal); }

void Agreement::begin_step() { in_flight_.begin(); }

void Agreement::throw_failure(int64_t step) const { throw absl::BadStatusOrAccess(failed_elsewhere(verdict_, step)); }

void Agreement::correct(const std::vector<Optimizer*>& optimizers, double expected, MemoryRecovery& memory) const {
  const double factor = expected / verdict_.weight;
  if (factor == 1.0) return;
  for (const Optimizer* optimizer : optimizers) memory.run([&] { scale(optimizer->gradients(), factor); });
}

void Agreement::end_capture() {
  if (vote_before_) vote_ = *std::exchange(vote_before_, std::nullopt);
}

void Agreement::repeat_requests() {
  vote_.stop = std::max(vote_.stop, verdict_.stop);
  vote_.save |= verdict_.save;
}

absl::Status failed_elsewhere(const StepVerdict& verdict, int64_t step) {
  const std::string rank = "rank " + std::to_string(verdict.failed.front());
  return to_status(
      {.exit_code = ExitCode::kDistributed,
       .id = "dist.peer",
       .problem = rank + " failed at step " + std::to_string(step) + ": " + verdict.reason},
      verdict.out_of_memory.empty() ? absl::StatusCode::kUnavailable : absl::StatusCode::kResourceExhausted);
}

std::unique_ptr<Agreement> make_agreement(ReplicaStrategy& devices, StepsInFlight& in_flight, MemoryRecovery& memory,
                                          StepGraphs* graphs, bool replicas_meet) {
  if (!devices.process_group()) return std::make_unique<AloneAgreement>(in_flight);
  GraphRanks* ranks = devices.graph_ranks();
  if (!graphs || !ranks) return std::make_unique<HostAgreement>(devices, in_flight);
  return std::make_unique<DeviceAgreement>(devices, in_flight, memory, *graphs, *ranks, replicas_meet);
}

}  // namespace trainkit::detail
