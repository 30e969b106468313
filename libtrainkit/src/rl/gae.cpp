#include "trainkit/rl/gae.h"

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include <vector>

#include "core/machine/parallel.h"
#include "rl/advantage_scan.h"

namespace trainkit {
namespace {

void check(const GaeInput& steps, const GaeOptions& options) {
  TORCH_CHECK_VALUE(steps.reward.defined() && steps.reward.dim() == 2, "gae: reward must have shape (T, N)");
  const auto require = [&](const at::Tensor& tensor, const char* name, at::ScalarType dtype) {
    TORCH_CHECK_VALUE(tensor.defined() && tensor.sizes() == steps.reward.sizes(), "gae: ", name,
                      " must have the shape of reward, ", steps.reward.sizes());
    TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, "gae: ", name, " must be ", dtype, ", got ", tensor.scalar_type());
    TORCH_CHECK_VALUE(tensor.device() == steps.reward.device(), "gae: ", name, " is on another device than reward");
  };
  const at::ScalarType dtype = steps.reward.scalar_type();
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kDouble, "gae: reward must be float32 or float64, got ", dtype);
  require(steps.value, "value", dtype);
  require(steps.next_value, "next_value", dtype);
  require(steps.terminated, "terminated", at::kBool);
  require(steps.truncated, "truncated", at::kBool);
  TORCH_CHECK_VALUE(options.gamma >= 0 && options.gamma <= 1, "gae: gamma must be in [0, 1], got ", options.gamma);
  TORCH_CHECK_VALUE(options.lambda >= 0 && options.lambda <= 1, "gae: lambda must be in [0, 1], got ", options.lambda);
}

/// One step of some simulators. `carry` has the advantages of the step after it, and gets those of this one. No memory
/// overlaps, so the compiler vectorises the loop.
template <class T>
struct StepRows {
  const T *reward, *value, *next_value;
  const bool *terminated, *truncated;
  T *advantage, *returns, *carry;

  void compute(T gamma, T decay, int64_t count) const {
    const T* __restrict r = reward;
    const T* __restrict v = value;
    const T* __restrict n = next_value;
    const bool* __restrict ends = terminated;
    const bool* __restrict cut = truncated;
    T* __restrict a = advantage;
    T* __restrict sum = returns;
    T* __restrict later = carry;
    for (int64_t i = 0; i < count; ++i) {
      // Read first, then chosen: no branches.
      const T following = n[i], before = later[i];
      const bool has_ended = ends[i], is_cut = cut[i];
      const T next = has_ended ? T(0) : following;
      const T rest = (has_ended | is_cut) ? T(0) : before;
      const T all = r[i] + gamma * next - v[i] + decay * rest;
      later[i] = all;
      a[i] = all;
      sum[i] = all + v[i];
    }
  }
};

/// Columns [begin, end) of the rollout, from the last step to the first.
template <class T>
void compute_columns(const GaeInput& steps, const GaeOptions& options, const GaeResult& result, int64_t begin,
                     int64_t end) {
  const int64_t width = steps.reward.size(1);
  std::vector<T> carry(static_cast<size_t>(end - begin));
  for (int64_t t = steps.reward.size(0) - 1; t >= 0; --t) {
    const int64_t row = t * width + begin;
    const StepRows<T> rows = {.reward = steps.reward.const_data_ptr<T>() + row,
                              .value = steps.value.const_data_ptr<T>() + row,
                              .next_value = steps.next_value.const_data_ptr<T>() + row,
                              .terminated = steps.terminated.const_data_ptr<bool>() + row,
                              .truncated = steps.truncated.const_data_ptr<bool>() + row,
                              .advantage = result.advantage.mutable_data_ptr<T>() + row,
                              .returns = result.returns.mutable_data_ptr<T>() + row,
                              .carry = carry.data()};
    rows.compute(static_cast<T>(options.gamma), static_cast<T>(options.gamma * options.lambda), end - begin);
  }
}

/// Divides the columns among the threads, each with a part of each row that is long enough to be read in order.
void compute_on_cpu(const GaeInput& steps, const GaeOptions& options, const GaeResult& result) {
  constexpr int64_t kColumns = 128;
  detail::parallel_for(0, steps.reward.size(1), kColumns, [&](int64_t begin, int64_t end) {
    AT_DISPATCH_FLOATING_TYPES(steps.reward.scalar_type(), "gae",
                               [&] { compute_columns<scalar_t>(steps, options, result, begin, end); });
  });
}

}  // namespace

at::Tensor detail::scan_advantages(const GaeInput& steps, const GaeOptions& options) {
  const at::Tensor next = steps.next_value.masked_fill(steps.terminated, 0);
  const at::Tensor continues = steps.terminated.logical_or(steps.truncated).logical_not().to(steps.reward.dtype());
  at::Tensor sum = steps.reward + options.gamma * next - steps.value;
  at::Tensor factor = options.gamma * options.lambda * continues;
  const int64_t length = sum.size(0);
  for (int64_t reach = 1; reach < length; reach *= 2) {
    // Rows that reach beyond the end are complete. The products read the tensors of the round before.
    const at::Tensor added = factor.narrow(0, 0, length - reach) * sum.narrow(0, reach, length - reach);
    const at::Tensor farther = factor.narrow(0, 0, length - reach) * factor.narrow(0, reach, length - reach);
    sum.narrow(0, 0, length - reach).add_(added);
    factor.narrow(0, 0, length - reach).copy_(farther);
  }
  return sum;
}

GaeResult gae(const GaeInput& steps, const GaeOptions& options) {
  check(steps, options);
  const at::NoGradGuard no_grad;
  if (!steps.reward.is_cpu()) {
    const at::Tensor advantage = detail::scan_advantages(steps, options);
    return {advantage, advantage + steps.value};
  }
  const GaeInput rows = {steps.reward.contiguous(), steps.value.contiguous(), steps.next_value.contiguous(),
                         steps.terminated.contiguous(), steps.truncated.contiguous()};
  const GaeResult result = {at::empty_like(rows.reward), at::empty_like(rows.reward)};
  compute_on_cpu(rows, options, result);
  return result;
}

}  // namespace trainkit
