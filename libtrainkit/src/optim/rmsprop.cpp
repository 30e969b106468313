#include "trainkit/optim/rmsprop.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "core/base/option_problems.h"
#include "core/device/gpu_launch.h"
#include "core/tensors/tensor_lists.h"
#include "trainkit/core/vectorized.h"
#ifdef TRAINKIT_WITH_CUDA
#include "optim/rmsprop_kernel.h"
#endif

namespace trainkit {
namespace {

constexpr int64_t kGrain = 16384;  // values of a task

template <class T>
struct RMSpropValues {
  T* param;
  const T* gradient;
  T* square_avg;
  T* momentum_buffer;  // null without momentum
  T* grad_avg;         // null unless centered
  T lr, alpha, rest, eps, weight_decay, momentum;
};

template <class T, bool has_momentum, bool is_centered>
TRAINKIT_INLINE void update_values(const RMSpropValues<T>& v, int64_t begin, int64_t end) {
  T* __restrict p = v.param, * __restrict s = v.square_avg, * __restrict b = v.momentum_buffer, * __restrict m = v.grad_avg;
  const T* __restrict gradient = v.gradient;
  for (int64_t i = begin; i < end; ++i) {
    const T g = gradient[i] + v.weight_decay * p[i];
    s[i] = v.alpha * s[i] + v.rest * g * g;
    T variance = s[i];
    if constexpr (is_centered) {
      m[i] += v.rest * (g - m[i]);
      variance -= m[i] * m[i];
      variance = variance < 0 ? T(0) : variance;  // keeps NaN
    }
    T change = g / (std::sqrt(variance) + v.eps);
    if constexpr (has_momentum) {
      change += v.momentum * b[i];
      b[i] = change;
    }
    p[i] -= v.lr * change;
  }
}

template <class T>
TRAINKIT_INLINE void update_part(const RMSpropValues<T>& v, int64_t begin, int64_t end) {
  if (v.momentum_buffer) {
    v.grad_avg ? update_values<T, true, true>(v, begin, end) : update_values<T, true, false>(v, begin, end);
  } else {
    v.grad_avg ? update_values<T, false, true>(v, begin, end) : update_values<T, false, false>(v, begin, end);
  }
}

TRAINKIT_VECTORIZED void update_floats(const RMSpropValues<float>& v, int64_t begin, int64_t end) {
  update_part(v, begin, end);
}

TRAINKIT_VECTORIZED void update_doubles(const RMSpropValues<double>& v, int64_t begin, int64_t end) {
  update_part(v, begin, end);
}

}  // namespace

RMSprop::RMSprop(const RMSpropOptions& options)
    : Optimizer({.lr = options.lr, .weight_decay = options.weight_decay, .capturable = options.capturable}),
      alpha_(options.alpha),
      eps_(options.eps),
      momentum_(options.momentum),
      centered_(options.centered ? 1 : 0) {
  detail::OptionProblems problems;
  problems.require(detail::finite_not_negative(options.lr), "lr", "finite and >= 0", options.lr)
      .require(detail::finite_not_negative(options.weight_decay), "weight_decay", "finite and >= 0",
               options.weight_decay)
      .require(false, option_problems());
  TORCH_CHECK_VALUE(problems.empty(), "RMSprop: ", problems.text());
}

std::unique_ptr<Optimizer> RMSprop::create_like() const {
  const BaseOptions base = base_options();
  return std::make_unique<RMSprop>(RMSpropOptions{.lr = base.lr,
                                                  .alpha = alpha_,
                                                  .eps = eps_,
                                                  .weight_decay = base.weight_decay,
                                                  .momentum = momentum_,
                                                  .centered = centered_ != 0,
                                                  .capturable = base.capturable});
}

std::vector<std::string> RMSprop::state_names(const ParamGroup&) const {
  std::vector<std::string> names = {"square_avg"};
  if (momentum_ > 0) names.emplace_back("momentum_buffer");
  if (centered_ != 0) names.emplace_back("grad_avg");
  return names;
}

std::vector<std::pair<const char*, double*>> RMSprop::hyperparameters() {
  return {{"alpha", &alpha_}, {"eps", &eps_}, {"momentum", &momentum_}, {"centered", &centered_}};
}

std::string RMSprop::option_problems() const {
  return detail::OptionProblems()
      .require(alpha_ >= 0 && alpha_ <= 1, "alpha", "in [0, 1]", alpha_)
      .require(detail::finite_not_negative(eps_), "eps", "finite and >= 0", eps_)
      .require(momentum_ >= 0 && momentum_ < 1, "momentum", "in [0, 1)", momentum_)
      .require(centered_ == 0 || centered_ == 1, "centered", "0 or 1", centered_)
      .text();
}

void RMSprop::apply(const FusedArguments& a) {
  if (apply_by_kernel(a)) return;
  if (a.found_inf && a.found_inf->is_cpu() && *a.found_inf->const_data_ptr<float>() != 0) return;
  for (size_t i = 0; i < a.params.size(); ++i) update(a, i);
}

/// Updates parameter i on the CPU by a loop, or with LibTorch's operations.
void RMSprop::update(const FusedArguments& a, size_t i) const {
  const at::Tensor &param = a.params[i], &gradient = a.gradients[i], &square_avg = a.state[0][i];
  const at::Tensor buffer = momentum_ > 0 ? a.state[1][i] : at::Tensor();
  const at::Tensor grad_avg = centered_ != 0 ? a.state.back()[i] : at::Tensor();
  const auto by_loop = [&]<class T>(T, auto* run) {
    const auto data = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.mutable_data_ptr<T>() : nullptr;
    };
    const double lr = a.device_lr.defined() ? *a.device_lr.const_data_ptr<float>() : a.lr;
    const RMSpropValues<T> values = {.param = data(param),
                                     .gradient = gradient.const_data_ptr<T>(),
                                     .square_avg = data(square_avg),
                                     .momentum_buffer = data(buffer),
                                     .grad_avg = data(grad_avg),
                                     .lr = static_cast<T>(lr),
                                     .alpha = static_cast<T>(alpha_),
                                     .rest = static_cast<T>(1 - alpha_),
                                     .eps = static_cast<T>(eps_),
                                     .weight_decay = static_cast<T>(a.weight_decay),
                                     .momentum = static_cast<T>(momentum_)};
    at::parallel_for(0, param.numel(), kGrain, [&](int64_t begin, int64_t end) { run(values, begin, end); });
  };
  if (param.is_cpu() && param.scalar_type() == at::kFloat) return by_loop(float(), update_floats);
  if (param.is_cpu() && param.scalar_type() == at::kDouble) return by_loop(double(), update_doubles);

  const auto type = param.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto put = [&](const at::Tensor& into, const at::Tensor& value) {
    // The device decides whether the step is skipped.
    const bool decides = a.found_inf && !a.found_inf->is_cpu();
    into.copy_(decides ? at::where(a.found_inf->to(at::kBool), into, value.to(into.scalar_type())) : value);
  };
  const at::Tensor old = param.to(type);
  const at::Tensor g = a.weight_decay == 0 ? gradient.to(type) : gradient.to(type) + old * a.weight_decay;
  const at::Tensor square = square_avg.to(type) * alpha_ + g * g * (1 - alpha_);
  at::Tensor variance = square;
  if (grad_avg.defined()) {
    const at::Tensor mean = grad_avg.to(type) * alpha_ + g * (1 - alpha_);
    variance = (square - mean * mean).clamp_min(0);
    put(grad_avg, mean);
  }
  at::Tensor change = g / (variance.sqrt() + eps_);
  if (buffer.defined()) {
    change = change + buffer.to(type) * momentum_;
    put(buffer, change);
  }
  put(square_avg, square);
  put(param, a.device_lr.defined() ? old - change * a.device_lr : old - change * a.lr);
}

/// Returns false if this build's kernel does not take the tensors.
bool RMSprop::apply_by_kernel([[maybe_unused]] const FusedArguments& a) const {
#ifdef TRAINKIT_WITH_CUDA
  std::vector<at::TensorList> lists = {a.params, a.gradients};
  for (const auto& list : a.state) lists.emplace_back(list);
  for (const at::TensorList tensors : lists) {
    if (!detail::has_list_kernels(tensors)) return false;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].strides() != a.params[i].strides()) return false;
    }
  }
  const detail::RMSpropArguments arguments = {
      .alpha = static_cast<float>(alpha_),
      .eps = static_cast<float>(eps_),
      .weight_decay = static_cast<float>(a.weight_decay),
      .momentum = static_cast<float>(momentum_),
      .lr = static_cast<float>(a.lr),
      .device_lr = a.device_lr.defined() ? a.device_lr.const_data_ptr<float>() : nullptr,
      .found_inf = a.found_inf ? a.found_inf->const_data_ptr<float>() : nullptr};
  for (size_t first = 0; first < a.params.size(); first += detail::kMostRMSpropParameters) {
    detail::RMSpropList list;
    for (size_t i = first; i < a.params.size() && list.count < detail::kMostRMSpropParameters; ++i, ++list.count) {
      list.params[list.count] = a.params[i].mutable_data_ptr<float>();
      list.gradients[list.count] = a.gradients[i].const_data_ptr<float>();
      list.square_avgs[list.count] = a.state[0][i].mutable_data_ptr<float>();
      list.momentum_buffers[list.count] = momentum_ > 0 ? a.state[1][i].mutable_data_ptr<float>() : nullptr;
      list.grad_avgs[list.count] = centered_ != 0 ? a.state.back()[i].mutable_data_ptr<float>() : nullptr;
      list.sizes[list.count] = a.params[i].numel();
    }
    detail::launch_on(a.params.front().device(),
                      [&](void* stream) { return detail::launch_rmsprop(list, arguments, stream); });
  }
  return true;
#else
  return false;
#endif
}

}  // namespace trainkit
