#include "train/update/weight_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_fused_sgd.h>

#include <algorithm>

namespace trainkit::detail {

WeightAverage::WeightAverage(const Optimizer& optimizer, double decay) : decay_(decay) {
  for (const ParamGroup& group : optimizer.param_groups()) add(group);
}

void WeightAverage::add(const ParamGroup& group) {
  const at::NoGradGuard no_grad;
  for (const NamedParameter& parameter : group.params) {
    weights_.push_back(parameter.tensor);
    averages_.push_back(parameter.tensor.detach().clone());
    const auto same = [&](const Bucket& b) {
      return b.weights.front().scalar_type() == parameter.tensor.scalar_type();
    };
    auto bucket = std::find_if(buckets_.begin(), buckets_.end(), same);
    if (bucket == buckets_.end()) bucket = buckets_.emplace(bucket);
    bucket->weights.push_back(parameter.tensor);
    bucket->averages.push_back(averages_.back());
  }
}

// Note [Average of skipped steps]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A step with non-finite gradients must not move the averages, but only the device knows that it was skipped. LibTorch
// has no foreach operation with such a condition, except the fused optimizers. SGD without momentum, with `maximize`,
// weight decay 1 and the learning rate 1 - decay, where the averages are its parameters and the weights its gradients,
// computes average -= (1 - decay) * (-weight + 1 * average): the same formula, in one kernel that reads found_inf.

void WeightAverage::update(const at::Tensor& found_inf) const {
  const at::NoGradGuard no_grad;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.weights.front().is_cpu()) {
      const auto unless = found_inf.defined() ? std::optional<at::Tensor>(found_inf) : std::nullopt;
      at::_fused_sgd_(bucket.averages, bucket.weights, /*momentum_buffer_list=*/{}, /*weight_decay=*/1.0,
                      /*momentum=*/0.0, /*lr=*/1.0 - decay_, /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/true,
                      /*is_first_step=*/false, /*grad_scale=*/{}, unless);
    } else if (!found_inf.defined() || *found_inf.const_data_ptr<float>() == 0) {  // reading the host's memory
      at::_foreach_lerp_(bucket.averages, bucket.weights, 1.0 - decay_);
    }
  }
}

void WeightAverage::assign(const WeightAverage& other) const {
  const at::NoGradGuard no_grad;
  at::_foreach_copy_(averages_, other.averages_, /*non_blocking=*/true);
}

}  // namespace trainkit::detail
