#include "optim/learning_rates.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <cmath>

namespace trainkit::detail {

LearningRates LearningRates::on_device_of(const std::vector<ParamGroup>& groups) const {
  std::vector<double> multiples;
  multiples.reserve(groups.size());
  for (const ParamGroup& group : groups) multiples.push_back(group.lr_multiple);
  LearningRates rates(*this);
  rates.multiples_ = at::tensor(multiples, at::kDouble).to(groups.front().params.front().tensor.device());
  rates.values_ = rates.multiples_.mul(lr_).to(at::kFloat);  // the dtype that the CUDA kernels read
  rates.views_ = rates.values_.unbind();
  return rates;
}

std::vector<double> LearningRates::of_groups(const std::vector<ParamGroup>& groups) const {
  std::vector<double> lrs;
  if (are_on_device()) {
    const at::Tensor host = values_.to(at::kCPU, at::kDouble);
    lrs.assign(host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel());
  } else {
    for (const ParamGroup& group : groups) lrs.push_back(of(group));
  }
  return lrs;
}

void LearningRates::set(double lr) {
  TORCH_CHECK_VALUE(lr >= 0 && std::isfinite(lr), "optimizer: lr must be finite and >= 0, got ", lr);
  lr_ = lr;
  if (are_on_device()) values_.copy_(multiples_.mul(lr));
}

void LearningRates::set_on_device(const at::Tensor& lr) {
  TORCH_CHECK(are_on_device(), "optimizer: learning rates are not kept on the device");
  at::mul_out(values_, multiples_, lr);
}

void LearningRates::set_multiple(size_t group, double multiple, double factor) {
  if (!are_on_device()) return;
  multiples_[static_cast<int64_t>(group)].fill_(multiple);
  views_[group].mul_(factor);
}

void LearningRates::assign(const LearningRates& other) {
  lr_ = other.lr_;
  initial_ = other.initial_;
  if (!other.are_on_device()) return;
  multiples_.copy_(other.multiples_, /*non_blocking=*/true);
  values_.copy_(other.values_, /*non_blocking=*/true);
}

void LearningRates::load(double lr, double initial, const std::vector<ParamGroup>& groups) {
  lr_ = lr;
  initial_ = initial;
  if (!are_on_device()) return;
  const LearningRates loaded = on_device_of(groups);  // copied in place: a captured graph reads these addresses
  multiples_.copy_(loaded.multiples_);
  values_.copy_(loaded.values_);
}

void LearningRates::forget_groups() {
  multiples_.reset();
  values_.reset();
  views_.clear();
}

}  // namespace trainkit::detail
