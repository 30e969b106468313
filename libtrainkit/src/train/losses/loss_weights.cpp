#include "train/losses/loss_weights.h"

#include <ATen/ops/full.h>

#include <exception>

#include "train/retry/memory_recovery.h"

namespace trainkit::detail {

/// Largest factor of a loss that float32 holds with room for gradients. See Note [Weights of losses].
constexpr double kMaxShare = 1e30;

LossWeights::LossWeights(DeviceReplicator& devices, int64_t micro_batches, MemoryRecovery& memory)
    : devices_(devices), micro_batches_(micro_batches), memory_(memory) {}

LossWeights::Share LossWeights::share_of(int64_t replica, double weight, int64_t split) {
  const bool alone = devices_.world_replicas() == 1;
  const auto parts = static_cast<double>(split);
  const double unit = alone ? 0 : unit_ > 0 ? unit_ : agree_on_unit(replica, weight * parts);
  const double whole = static_cast<double>(micro_batches_ * devices_.world_replicas());
  // With several replicas every thread computes the same number.
  const double expected = alone ? (sum_ == 0 ? weight * parts * whole : expected_) : unit * whole;
  if (replica == 0) expected_ = expected;
  const double share = weight > 0 ? weight / expected : 0;
  TORCH_CHECK_VALUE(share <= kMaxShare, "LossOutput::weight is more than ", kMaxShare,
                    " times that of the first micro-batches, got ", weight,
                    ": give a micro-batch of almost no weight the weight 0");
  return {share, unit};
}

void LossWeights::take_part(int64_t replica) {
  if (unit_ > 0 || !devices_.process_group()) return;
  try {
    agree_on_unit(replica, 0);
  } catch (const std::exception&) {
    // The group has failed as well. The caller reports the first error.
  }
}

/// Returns the mean weight of the replicas' first batches. Called once per run.
double LossWeights::agree_on_unit(int64_t replica, double weight) {
  at::Tensor sum;
  memory_.run([&] { sum = at::full({1}, weight, at::kDouble); });  // the others wait for it
  devices_.group().all_reduce(replica, sum);
  const double unit = sum.item<double>() / static_cast<double>(devices_.world_replicas());
  return unit > 0 ? unit : 1.0;
}

}  // namespace trainkit::detail
