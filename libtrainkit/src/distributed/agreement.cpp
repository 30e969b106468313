#include "trainkit/distributed/agreement.h"

#include <ATen/ops/zeros.h>

#include <cmath>

#include "distributed/process_group_impl.h"
#include "distributed/rendezvous.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

// The sums: weight, step, step squared (equal steps alone give both sums), then what each rank has to say.
constexpr int64_t kWeight = 0, kStep = 1, kStepSquared = 2, kFirstRank = 3;
constexpr int kSave = 1, kFoundInf = 2, kOutOfMemory = 4, kFailed = 8, kStop = 16;

}  // namespace

Agreement::Agreement(ProcessGroup& group)
    : group_(group), numbers_(at::zeros({kFirstRank + group.world_size()}, at::kDouble)) {}

absl::StatusOr<StepVerdict> Agreement::operator()(int64_t step, const StepVote& vote) try {
  double* numbers = numbers_.mutable_data_ptr<double>();
  std::fill_n(numbers, numbers_.numel(), 0.0);
  // The largest step that is exact in all sums: squares stay below 2^53 by counting modulo 2^20.
  const auto place = static_cast<double>(step % (1 << 20));
  numbers[kWeight] = vote.weight;
  numbers[kStep] = place;
  numbers[kStepSquared] = place * place;
  numbers[kFirstRank + group_.rank()] = (vote.save ? kSave : 0) + (vote.found_inf ? kFoundInf : 0) +
                                        (vote.out_of_memory ? kOutOfMemory : 0) + (vote.failed ? kFailed : 0) +
                                        kStop * vote.stop;
  group_.set_step(step);
  const auto reason_key = [&](int64_t rank) { return "failed/" + std::to_string(step) + "/" + std::to_string(rank); };
  if (vote.failed || vote.out_of_memory) group_.impl().store().set(reason_key(group_.rank()), vote.reason);
  TRAINKIT_RETURN_IF_ERROR(group_.all_reduce(numbers_, "the agreement"));
  const auto ranks = static_cast<double>(group_.world_size());
  if (numbers[kStep] != ranks * place || numbers[kStepSquared] != ranks * place * place) {
    return detail::distributed_error("dist.order", "step", "ranks are not at the same step",
                                     "a mean of " + std::to_string(numbers[kStep] / ranks),
                                     std::to_string(static_cast<int64_t>(place)) + " on all ranks");
  }
  StepVerdict verdict{.weight = numbers[kWeight]};
  for (int64_t rank = 0; rank < group_.world_size(); ++rank) {
    const int said = static_cast<int>(numbers[kFirstRank + rank]);
    verdict.stop = std::max(verdict.stop, said / kStop);
    verdict.save |= (said & kSave) != 0;
    verdict.found_inf |= (said & kFoundInf) != 0;
    if (said & kOutOfMemory) verdict.out_of_memory.push_back(rank);
    if (said & (kFailed | kOutOfMemory)) verdict.failed.push_back(rank);
  }
  if (!verdict.ok()) verdict.reason = group_.impl().store().get_to_str(reason_key(verdict.failed.front()));
  return verdict;
} catch (const std::exception& error) {  // the store
  return group_.impl().failure("the agreement", std::chrono::steady_clock::now(), error.what());
}

}  // namespace trainkit
