#include "trainkit/rl/gae.h"

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/machine/parallel.h"
#include "rl/advantage_scan.h"
#include "trainkit/core/vectorized.h"

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

/// Returns 0 if `flag`, else `value`, which may be NaN. By bits: a choice of floats keeps the loop from being
/// vectorised.
template <class T>
TRAINKIT_INLINE T unless(int flag, T value) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  return std::bit_cast<T>(std::bit_cast<Bits>(value) & (static_cast<Bits>(flag) - 1));
}

/// One step of `count` simulators. `carry` has the advantages of the step after it, and gets those of this one. No
/// memory overlaps.
template <class T>
TRAINKIT_INLINE void compute_step(const T* __restrict reward, const T* __restrict value, const T* __restrict next_value,
                                  const bool* __restrict terminated, const bool* __restrict truncated,
                                  T* __restrict advantage, T* __restrict returns, T* __restrict carry, T gamma, T decay,
                                  int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const T next = unless(terminated[i], next_value[i]);
    const T later = unless(terminated[i] | truncated[i], carry[i]);
    const T all = reward[i] + gamma * next - value[i] + decay * later;
    carry[i] = all;
    advantage[i] = all;
    returns[i] = all + value[i];
  }
}

TRAINKIT_VECTORIZED void compute_row(const float* __restrict reward, const float* __restrict value,
                                     const float* __restrict next_value, const bool* __restrict terminated,
                                     const bool* __restrict truncated, float* __restrict advantage,
                                     float* __restrict returns, float* __restrict carry, float gamma, float decay,
                                     int64_t count) {
  compute_step(reward, value, next_value, terminated, truncated, advantage, returns, carry, gamma, decay, count);
}

TRAINKIT_VECTORIZED void compute_row(const double* __restrict reward, const double* __restrict value,
                                     const double* __restrict next_value, const bool* __restrict terminated,
                                     const bool* __restrict truncated, double* __restrict advantage,
                                     double* __restrict returns, double* __restrict carry, double gamma, double decay,
                                     int64_t count) {
  compute_step(reward, value, next_value, terminated, truncated, advantage, returns, carry, gamma, decay, count);
}

constexpr int64_t kPrefetched = 1024;  // columns

/// Loads `count` numbers into the cache, or the lines to write them into.
template <bool kWrites, class T>
void prefetch(const T* numbers, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(numbers + i, kWrites);
}

/// Columns [begin, end) of the rollout, from the last step to the first. A processor that reads each row forwards does
/// not foresee the row before it, so short rows are prefetched; long ones are read in order.
template <class T>
void compute_columns(const GaeInput& steps, const GaeOptions& options, const GaeResult& result, int64_t begin,
                     int64_t end) {
  const int64_t width = steps.reward.size(1);
  const T *reward = steps.reward.const_data_ptr<T>(), *value = steps.value.const_data_ptr<T>(),
          *next_value = steps.next_value.const_data_ptr<T>();
  const bool *terminated = steps.terminated.const_data_ptr<bool>(), *truncated = steps.truncated.const_data_ptr<bool>();
  T *advantage = result.advantage.mutable_data_ptr<T>(), *returns = result.returns.mutable_data_ptr<T>();
  const auto gamma = static_cast<T>(options.gamma), decay = static_cast<T>(options.gamma * options.lambda);
  std::vector<T> carry(static_cast<size_t>(end - begin));
  const int64_t ahead = end - begin <= kPrefetched ? 4 : steps.reward.size(0);  // rows
  for (int64_t t = steps.reward.size(0) - 1; t >= 0; --t) {
    const int64_t row = t * width + begin;
    if (t >= ahead) {
      const int64_t earlier = row - ahead * width;
      for (const T* numbers : {reward, value, next_value}) prefetch<false>(numbers + earlier, end - begin);
      for (const bool* flags : {terminated, truncated}) prefetch<false>(flags + earlier, end - begin);
      for (const T* numbers : {advantage, returns}) prefetch<true>(numbers + earlier, end - begin);
    }
    compute_row(reward + row, value + row, next_value + row, terminated + row, truncated + row, advantage + row,
                returns + row, carry.data(), gamma, decay, end - begin);
  }
}

/// Divides the columns of large rollouts among threads. A part of a row is long enough to be read in order.
void compute_on_cpu(const GaeInput& steps, const GaeOptions& options, const GaeResult& result) {
  constexpr int64_t kColumns = 128, kElements = int64_t{1} << 18;  // of a thread, at least
  const int64_t horizon = std::max<int64_t>(1, steps.reward.size(0));
  detail::parallel_for(
      0, steps.reward.size(1), std::max(kColumns, kElements / horizon), [&](int64_t begin, int64_t end) {
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

void detail::gae_into(const GaeInput& steps, const GaeOptions& options, const GaeResult& result) {
  check(steps, options);
  const at::NoGradGuard no_grad;
  if (!steps.reward.is_cpu()) {
    result.advantage.copy_(detail::scan_advantages(steps, options));
    result.returns.copy_(result.advantage).add_(steps.value);
    return;
  }
  const GaeInput rows = {steps.reward.contiguous(), steps.value.contiguous(), steps.next_value.contiguous(),
                         steps.terminated.contiguous(), steps.truncated.contiguous()};
  compute_on_cpu(rows, options, result);
}

GaeResult gae(const GaeInput& steps, const GaeOptions& options) {
  TORCH_CHECK_VALUE(steps.reward.defined(), "gae: no reward");
  const auto like_reward = [&] { return at::empty(steps.reward.sizes(), steps.reward.options()); };
  const GaeResult result = {like_reward(), like_reward()};
  detail::gae_into(steps, options, result);
  return result;
}

}  // namespace trainkit
