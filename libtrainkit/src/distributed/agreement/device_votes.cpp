#include "distributed/agreement/device_votes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "core/device/gpu_kernel_support.h"
#include "core/device/gpu_launch.h"
#include "core/tensors/tensor_lists.h"
#include "distributed/agreement/vote_kernels.h"
#include "distributed/replicas/replica_tools.h"

namespace trainkit::detail {
namespace {

constexpr std::string_view kWhat = "the agreement";

}  // namespace

DeviceVotes::DeviceVotes(ProcessGroup& group, at::Device device) : group_(group) {
  const at::NoGradGuard no_grad;
  const int64_t size = Ballot::size(group.world_size());
  const auto on_device = at::TensorOptions(device);
  votes_ = at::zeros({size}, on_device.dtype(at::kDouble));
  blocked_ = at::zeros({}, on_device.dtype(at::kFloat));
  correction_ = at::ones({}, on_device.dtype(at::kFloat));
  for (Place& place : places_) {
    const auto pinned = at::TensorOptions(at::kDouble).pinned_memory(true);
    place.cast = at::zeros({size}, pinned);
    place.sums = at::zeros({size}, pinned);
  }
}

void DeviceVotes::connect() {
  const at::NoGradGuard no_grad;
  sum(/*expected_weight=*/0);
  blocked_.zero_();
}

void DeviceVotes::cast(size_t place, int64_t step, const StepVote& vote) {
  const at::NoGradGuard no_grad;
  group_.set_step(step);
  Place& mine = places_[place];
  mine.step = step;
  Ballot::write(mine.cast.mutable_data_ptr<double>(), group_, step, vote);
  votes_.copy_(mine.cast, /*non_blocking=*/true);
}

void DeviceVotes::sum(double expected_weight) {
  const at::NoGradGuard no_grad;
  throw_status(group_.all_reduce(votes_, kWhat));
  decide(expected_weight);
}

void DeviceVotes::decide(double expected_weight) const {
#ifdef TRAINKIT_WITH_CUDA
  if (votes_.is_cuda() && has_gpu_kernels(votes_.device())) {
    return launch_on(votes_.device(), [&](void* stream) {
      return launch_decide(votes_.const_data_ptr<double>(), static_cast<double>(group_.world_size()), expected_weight,
                           static_cast<float*>(blocked_.data_ptr()), static_cast<float*>(correction_.data_ptr()),
                           stream);
    });
  }
#endif
  const at::Tensor has_weight = weight().gt(0);
  const at::Tensor may_update = votes_[Ballot::kSucceeded].eq(group_.world_size()).logical_and_(has_weight);
  at::Tensor(blocked_).copy_(may_update.logical_not_());
  const at::Tensor factor = at::scalar_tensor(expected_weight, at::kDouble).div(weight().clamp_min(1e-300));
  at::Tensor(correction_).copy_(factor.mul(has_weight));
}

void DeviceVotes::correct(const std::vector<at::Tensor>& gradients) const {
  const at::NoGradGuard no_grad;
  if (has_list_kernels(gradients)) return scale_by_kernel(gradients, correction_);
  if (!gradients.empty()) at::_foreach_mul_(gradients, correction_);
}

void DeviceVotes::collect(size_t place) {
  const at::NoGradGuard no_grad;
  Place& mine = places_[place];
  mine.sums.copy_(votes_, /*non_blocking=*/true);
  mine.collected = mine.step;
}

absl::StatusOr<StepVerdict> DeviceVotes::read(size_t place) {
  Place& mine = places_[place];
  const int64_t step = mine.collected.value();
  mine.collected.reset();
  return Ballot::read(mine.sums.const_data_ptr<double>(), group_, step);
}

}  // namespace trainkit::detail
