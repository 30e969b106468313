#include "optim/step_counts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace trainkit::detail {

StepCounts StepCounts::grown(int64_t parameters, at::Device device) const {
  StepCounts counts(*this);
  counts.steps_ = at::zeros({size() + parameters}, at::device(device).dtype(at::kFloat));
  counts.advance_all_ = at::ones_like(counts.steps_);
  if (steps_.defined()) counts.steps_.narrow(0, 0, size()).copy_(steps_);
  counts.total_ = counts.steps_.select(0, 0);
  counts.advance_present_.reset();
  counts.present_.assign(static_cast<size_t>(counts.size()), 1);
  return counts;
}

std::optional<int64_t> StepCounts::known() const {
  if (on_device_) return std::nullopt;
  return steps_.defined() ? upper_bound_ - skipped_ : 0;
}

void StepCounts::count_skipped() {
  ++upper_bound_;
  ++skipped_;
}

bool StepCounts::note_gradient(int64_t position, bool has_gradient) {
  char& present = present_[static_cast<size_t>(position)];
  if (present == static_cast<char>(has_gradient)) return false;
  present = static_cast<char>(has_gradient);
  advance_present_.reset();
  return true;
}

bool StepCounts::prepare() {
  if (std::find(present_.begin(), present_.end(), 0) == present_.end()) return true;
  if (!advance_present_.defined()) {
    const at::Tensor advance = at::empty({size()}, at::kFloat);
    std::copy(present_.begin(), present_.end(), advance.mutable_data_ptr<float>());
    advance_present_ = advance.to(steps_.device());
  }
  return false;
}

void StepCounts::advance(const std::optional<at::Tensor>& found_inf, bool all) {
  ++upper_bound_;
  const at::Tensor& advance = all ? advance_all_ : advance_present_;
  if (steps_.is_cpu() && !on_device_) {
    float* steps = steps_.mutable_data_ptr<float>();
    const float* by = advance.const_data_ptr<float>();
    for (int64_t i = 0; i < steps_.numel(); ++i) steps[i] += by[i];
    return;
  }
  steps_.add_(advance);
  if (found_inf) steps_.addcmul_(advance, *found_inf, -1);
}

void StepCounts::set_total(int64_t count) {
  upper_bound_ = count;
  skipped_ = 0;
  if (total_.defined()) total_.fill_(count);
}

}  // namespace trainkit::detail
