#pragma once
/// Arithmetic of one row, shared by the GPU kernels and their CPU counterparts. Float32 for all tensor dtypes.
///
/// C++17 without LibTorch, since nvcc compiles it too.

#include <cmath>

#ifdef __CUDACC__
#define TRAINKIT_HOST_DEVICE __host__ __device__ inline
#else
#define TRAINKIT_HOST_DEVICE inline
#endif

namespace trainkit::detail {

constexpr float kNormalDensityAtZero = 0.3989422804014327f;
constexpr float kRootOfTwoOverPi = 0.7978845608028654f;
constexpr float kGeluCubic = 0.044715f;

/// Computes x P(X <= x) of a standard normal X, or its tanh approximation. Source: Hendrycks and Gimpel, arXiv
/// 1606.08415.
TRAINKIT_HOST_DEVICE float gelu_of(float x, bool by_tanh) {
  if (!by_tanh) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  return 0.5f * x * (1.0f + tanhf(kRootOfTwoOverPi * (x + kGeluCubic * x * x * x)));
}

/// Computes the derivative of gelu_of at x.
TRAINKIT_HOST_DEVICE float gelu_slope_of(float x, bool by_tanh) {
  if (!by_tanh) {
    return 0.5f * (1.0f + erff(x * 0.70710678118654752f)) + x * kNormalDensityAtZero * expf(-0.5f * x * x);
  }
  const float t = tanhf(kRootOfTwoOverPi * (x + kGeluCubic * x * x * x));
  const float inner_slope = kRootOfTwoOverPi * (1.0f + 3.0f * kGeluCubic * x * x);
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner_slope;
}

/// Normalises a value of a layer norm.
TRAINKIT_HOST_DEVICE float normalised(float value, float mean, float inverse_std) {
  return (value - mean) * inverse_std;
}

/// Sums over a row of a layer norm: of g = d_out weight, and of g n, where n are the normalised values.
struct NormSums {
  float g, g_n;
};

/// Computes the gradient of a value whose normalised value is n: inverse_std (g - mean(g) - n mean(g n)), with means
/// over its row.
TRAINKIT_HOST_DEVICE float norm_gradient(float g, float n, NormSums means, float inverse_std) {
  return inverse_std * (g - means.g - n * means.g_n);
}

/// The sum of e^(x - max) over values x. Its logarithm plus max is log sum e^x, without overflow for any x.
struct ExpSum {
  float max = -INFINITY;
  float sum = 0;
};

/// Computes e^(x - max) for x <= max; 1 if both are minus infinity. NaN and plus infinity give NaN.
TRAINKIT_HOST_DEVICE float shifted_exp(float x, float max) {
  if (x == -INFINITY) return x == max ? 1.0f : 0.0f;
  return expf(x - max);
}

/// Merges the sums of two sets of values. A row of only minus infinity results in minus infinity.
TRAINKIT_HOST_DEVICE ExpSum merged(ExpSum a, ExpSum b) {
  ExpSum all;
  all.max = fmaxf(a.max, b.max);
  all.sum = a.sum * shifted_exp(a.max, all.max) + b.sum * shifted_exp(b.max, all.max);
  return all;
}

/// Adds `count` values. Costs one exponential per value and one per call.
template <int count>
TRAINKIT_HOST_DEVICE void add_values(ExpSum& all, const float (&values)[count]) {
  float max = all.max;
  for (int k = 0; k < count; ++k) max = fmaxf(max, values[k]);
  all.sum *= shifted_exp(all.max, max);
  all.max = max;
  for (int k = 0; k < count; ++k) all.sum += shifted_exp(values[k], max);
}

/// Computes log softmax of a value from the maximum of its row and log sum e^(x - max). max + log_sum is not formed: it
/// would be rounded to a float of the maximum's size (spacing 3e-5 at 256).
TRAINKIT_HOST_DEVICE float log_softmax(float value, float max, float log_sum) { return (value - max) - log_sum; }

/// Computes the gradient of -log softmax(logits)[target] with respect to one logit, times `scale`.
TRAINKIT_HOST_DEVICE float cross_entropy_slope(float log_softmax_of_logit, bool is_target, float scale) {
  return scale * (expf(log_softmax_of_logit) - (is_target ? 1.0f : 0.0f));
}

}  // namespace trainkit::detail
