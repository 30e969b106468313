#include "nn/cpu/block_kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/machine/row_tasks.h"
#include "core/tensors/recorded.h"
#include "core/tensors/vectors.h"

namespace trainkit::detail {

static std::vector<at::Tensor> tensors_of(const Normalised& norm) { return {norm.sum, norm.out}; }
static std::vector<at::Tensor> tensors_of(const LayerNormGradients& gradients) { return {gradients.sum}; }
static std::vector<at::Tensor> tensors_of(const BiasGradients& gradients) { return {gradients.x}; }

namespace {

constexpr int64_t kTask = int64_t{1} << 14;  // values per task
constexpr int64_t kMaxTasks = 64;            // partial sums that are added at the end

int64_t rows_of_task(int64_t rows, int64_t width) {
  return std::max({int64_t{1}, kTask / width, (rows + kMaxTasks - 1) / kMaxTasks});
}

int64_t tasks_of(int64_t rows, int64_t width) { return count_tasks(rows, rows_of_task(rows, width)); }

/// Calls work(rows, index of the task) for all tasks, in parallel.
template <typename Work>
void for_tasks(int64_t rows, int64_t width, const Work& work) {
  for_row_tasks(rows, width, rows_of_task(rows, width), work);
}

/// Adds the tasks' partial sums in order: `width` values at `offset` of each task's `each` values.
at::Tensor add_up(const std::vector<float>& parts, size_t each, size_t offset, int64_t width) {
  at::Tensor total = at::empty({width}, at::kFloat);
  auto* to = total.mutable_data_ptr<float>();
  std::copy_n(parts.data() + offset, width, to);
  for (size_t at = each + offset; at < parts.size(); at += each) {
    for (int64_t c = 0; c < width; ++c) to[c] += parts[at + c];
  }
  return total;
}

/// Sums over rows. `work` adds to a zeroed (width) buffer for each task; the buffers are added in order.
template <typename Work>
at::Tensor sum_of_tasks(int64_t rows, int64_t width, const Work& work) {
  std::vector<float> parts(tasks_of(rows, width) * width);
  for_tasks(rows, width, [&](Rows part, int64_t task) { work(part, parts.data() + task * width); });
  return add_up(parts, width, 0, width);
}

/// Adds `values` to `to` in place.
TRAINKIT_INLINE void add_to(float* to, const Floats& values) {
  Floats sum;
  load(to, sum);
  store(sum + values, to);
}

/// Adds the bias of the columns from c on, if there is one.
TRAINKIT_INLINE void add_bias(const float* bias, int64_t c, Floats& value) {
  if (!bias) return;
  Floats more;
  load(bias + c, more);
  value += more;
}

template <typename T>
TRAINKIT_INLINE void norm_rows(const float* x, const T* added, const float* bias, const float* weight,
                               const float* norm_bias, float eps, Rows rows, float* sum, T* out, float* mean,
                               float* inverse_std) {
  const auto width = static_cast<float>(rows.width);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t at = row * rows.width;
    Floats total = {};
    for (int64_t c = 0; c < rows.width; c += kLanes) {
      Floats value;
      load(x + at + c, value);
      if (added) {
        Floats more;
        load(added + at + c, more);
        value += more;
        add_bias(bias, c, value);
        store(value, sum + at + c);
      }
      total += value;
    }
    const float* from = added ? sum : x;
    const float center = sum_of(total) / width;
    Floats squares = {};
    for (int64_t c = 0; c < rows.width; c += kLanes) {
      Floats value;
      load(from + at + c, value);
      value -= center;
      squares += value * value;
    }
    const float inverse = 1 / std::sqrt(sum_of(squares) / width + eps);
    mean[row] = center;
    inverse_std[row] = inverse;
    for (int64_t c = 0; c < rows.width; c += kLanes) {
      Floats value, factor;
      load(from + at + c, value);
      load(weight + c, factor);
      value = (value - center) * inverse * factor;
      add_bias(norm_bias, c, value);
      store(value, out + at + c);
    }
  }
}

template <typename T>
TRAINKIT_INLINE void residual_rows(const float* x, const T* added, const float* bias, Rows rows, float* sum) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t at = row * rows.width;
    for (int64_t c = 0; c < rows.width; c += kLanes) {
      Floats value, more;
      load(x + at + c, value);
      load(added + at + c, more);
      value += more;
      add_bias(bias, c, value);
      store(value, sum + at + c);
    }
  }
}

/// Computes d_sum = d_residual + inverse_std (g - mean(g) - n mean(g n)), with n = (sum - mean) inverse_std and g =
/// d_out weight.
template <typename T>
TRAINKIT_INLINE void norm_gradient_rows(const T* d_out, const float* d_residual, const float* sum, const float* mean,
                                        const float* inverse_std, const float* weight, Rows rows, float* d_sum,
                                        float* d_weight, float* d_bias) {
  const auto width = static_cast<float>(rows.width);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t at = row * rows.width;
    Floats total = {}, products = {};
    for (int64_t c = 0; c < rows.width; c += kLanes) {
      Floats gradient, value, factor;
      load(d_out + at + c, gradient);
      load(sum + at + c, value);
      load(weight + c, factor);
      value = (value - mean[row]) * inverse_std[row];
      add_to(d_weight + c, gradient * value);
      if (d_bias) add_to(d_bias + c, gradient);
      gradient *= factor;
      total += gradient;
      products += gradient * value;
    }
    const float of_all = sum_of(total) / width, of_value = sum_of(products) / width;
    for (int64_t c = 0; c < rows.width; c += kLanes) {
      Floats gradient, value, factor, residual;
      load(d_out + at + c, gradient);
      load(sum + at + c, value);
      load(weight + c, factor);
      load(d_residual + at + c, residual);
      value = (value - mean[row]) * inverse_std[row];
      store(residual + inverse_std[row] * (gradient * factor - of_all - value * of_value), d_sum + at + c);
    }
  }
}

constexpr float kRootOf2OverPi = 0.7978845608028654f;  // for the tanh approximation of GELU
constexpr float kCubic = 0.044715f;

/// Computes the exact GELU's factor P(X <= x) of a standard normal X, and its density.
TRAINKIT_INLINE void normal_of(const Floats& x, Floats& below, Floats& density) {
  density = x * x * -0.5f;
  exp_of(density);
  const Floats size = (x < 0 ? -x : x) * 0.70710678118654752f;
  const Floats t = 1.0f / (1.0f + 0.3275911f * size);
  Floats tail = 1.061405429f * t - 1.453152027f;
  tail = tail * t + 1.421413741f;
  tail = tail * t - 0.284496736f;
  tail = (tail * t + 0.254829592f) * t * density * 0.5f;  // erfc / 2
  below = x < 0 ? tail : 1.0f - tail;
  density *= 0.39894228040143268f;
}

/// Computes (1 + tanh(u)) / 2 = 1 / (1 + e^-2u) with a power of at most 1, which cannot overflow.
TRAINKIT_INLINE void logistic_of_double(const Floats& u, Floats& result) {
  Floats power = (u < 0 ? u : -u) * 2.0f;
  exp_of(power);
  const Floats small = power / (1.0f + power);
  result = u < 0 ? small : 1.0f - small;
}

template <bool kTanh>
TRAINKIT_INLINE void gelu(Floats& x) {
  Floats below, density;
  if constexpr (kTanh)
    logistic_of_double(kRootOf2OverPi * (x + kCubic * x * x * x), below);
  else
    normal_of(x, below, density);
  x *= below;
}

template <bool kTanh>
TRAINKIT_INLINE void gelu_slope(Floats& x) {
  Floats below, density;
  if constexpr (kTanh) {
    logistic_of_double(kRootOf2OverPi * (x + kCubic * x * x * x), below);
    const Floats inner = kRootOf2OverPi * (1.0f + 3.0f * kCubic * x * x);
    x = below + x * 2.0f * below * (1.0f - below) * inner;
  } else {
    normal_of(x, below, density);
    x = below + x * density;
  }
}

template <bool kTanh, typename T>
TRAINKIT_INLINE void gelu_rows(const T* x, const float* bias, Rows rows, T* out) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t c = 0; c < rows.width; c += kLanes) {
      Floats value;
      load(x + row * rows.width + c, value);
      add_bias(bias, c, value);
      gelu<kTanh>(value);
      store(value, out + row * rows.width + c);
    }
  }
}

template <bool kTanh, typename T>
TRAINKIT_INLINE void gelu_gradient_rows(const T* gradient, const T* x, const float* bias, Rows rows, T* dx,
                                        float* d_bias) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t c = 0; c < rows.width; c += kLanes) {
      Floats value, other;
      load(x + row * rows.width + c, value);
      add_bias(bias, c, value);
      gelu_slope<kTanh>(value);
      load(gradient + row * rows.width + c, other);
      value *= other;
      store(value, dx + row * rows.width + c);
      if (bias) add_to(d_bias + c, value);
    }
  }
}

template <typename T>
TRAINKIT_INLINE void column_sums(const T* x, Rows rows, float* sums) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t c = 0; c < rows.width; c += kLanes) {
      Floats value;
      load(x + row * rows.width + c, value);
      add_to(sums + c, value);
    }
  }
}

// Defined by a macro for each dtype, because functions compiled for several instruction sets cannot be templates.
#define TRAINKIT_KERNELS(T)                                                                                            \
  TRAINKIT_VECTORIZED void norm(const float* x, const T* added, const float* bias, const float* weight,                \
                                const float* norm_bias, float eps, Rows rows, float* sum, T* out, float* mean,         \
                                float* inverse_std) {                                                                  \
    norm_rows(x, added, bias, weight, norm_bias, eps, rows, sum, out, mean, inverse_std);                              \
  }                                                                                                                    \
  TRAINKIT_VECTORIZED void residual(const float* x, const T* added, const float* bias, Rows rows, float* sum) {        \
    residual_rows(x, added, bias, rows, sum);                                                                          \
  }                                                                                                                    \
  TRAINKIT_VECTORIZED void norm_gradient(const T* d_out, const float* d_residual, const float* sum, const float* mean, \
                                         const float* inverse_std, const float* weight, Rows rows, float* d_sum,       \
                                         float* d_weight, float* d_bias) {                                             \
    norm_gradient_rows(d_out, d_residual, sum, mean, inverse_std, weight, rows, d_sum, d_weight, d_bias);              \
  }                                                                                                                    \
  TRAINKIT_VECTORIZED void activate(const T* x, const float* bias, bool tanh, Rows rows, T* out) {                     \
    if (tanh) return gelu_rows<true>(x, bias, rows, out);                                                              \
    gelu_rows<false>(x, bias, rows, out);                                                                              \
  }                                                                                                                    \
  TRAINKIT_VECTORIZED void activate_gradient(const T* gradient, const T* x, const float* bias, bool tanh, Rows rows,   \
                                             T* dx, float* d_bias) {                                                   \
    if (tanh) return gelu_gradient_rows<true>(gradient, x, bias, rows, dx, d_bias);                                    \
    gelu_gradient_rows<false>(gradient, x, bias, rows, dx, d_bias);                                                    \
  }                                                                                                                    \
  TRAINKIT_VECTORIZED void sum_columns(const T* x, Rows rows, float* sums) { column_sums(x, rows, sums); }
TRAINKIT_KERNELS(float)
TRAINKIT_KERNELS(uint16_t)  // bfloat16
#undef TRAINKIT_KERNELS

/// Calls run(float or uint16_t) according to the dtype of a tensor.
template <typename Run>
auto for_kind(at::ScalarType kind, const Run& run) {
  return kind == at::kFloat ? run(float{}) : run(uint16_t{});
}

}  // namespace

Normalised add_layer_norm(const at::Tensor& x, const at::Tensor& added, const at::Tensor& bias,
                          const at::Tensor& weight, const at::Tensor& norm_bias, double eps, at::ScalarType kind) {
  return recorded("trainkit::layer_norm", {x, added, weight}, [&] {
    const int64_t rows = x.size(0), width = x.size(1);
    Normalised result{added.defined() ? at::empty_like(x) : x, at::empty({rows, width}, x.options().dtype(kind)),
                      at::empty({rows}, x.options()), at::empty({rows}, x.options())};
    float* sum = added.defined() ? result.sum.mutable_data_ptr<float>() : nullptr;
    auto* mean = result.mean.mutable_data_ptr<float>();
    auto* inverse_std = result.inverse_std.mutable_data_ptr<float>();
    for_kind(kind, [&](auto t) {
      using T = decltype(t);
      T* out = writable<T>(result.out);
      for_tasks(rows, width, [&](Rows part, int64_t) {
        norm(values_of<float>(x), values_of<T>(added), values_of<float>(bias), values_of<float>(weight),
             values_of<float>(norm_bias), static_cast<float>(eps), part, sum, out, mean, inverse_std);
      });
    });
    return result;
  });
}

at::Tensor add_residual(const at::Tensor& x, const at::Tensor& added, const at::Tensor& bias) {
  return recorded("trainkit::residual", {x, added}, [&] {
    at::Tensor sum = at::empty_like(x);
    auto* to = sum.mutable_data_ptr<float>();
    for_kind(added.scalar_type(), [&](auto t) {
      for_tasks(x.size(0), x.size(1), [&](Rows part, int64_t) {
        residual(values_of<float>(x), values_of<decltype(t)>(added), values_of<float>(bias), part, to);
      });
    });
    return sum;
  });
}

LayerNormGradients layer_norm_backward(const at::Tensor& d_out, const at::Tensor& d_residual, const Normalised& of,
                                       const at::Tensor& weight, bool has_bias) {
  return recorded("trainkit::layer_norm_backward", {d_out, d_residual, weight}, [&] {
    const int64_t rows = of.sum.size(0), width = of.sum.size(1);
    LayerNormGradients gradients{at::empty_like(of.sum), {}, {}};
    auto* d_sum = gradients.sum.mutable_data_ptr<float>();
    const int64_t sums = has_bias ? 2 * width : width;
    std::vector<float> parts(tasks_of(rows, width) * sums);
    for_kind(d_out.scalar_type(), [&](auto t) {
      for_tasks(rows, width, [&](Rows part, int64_t task) {
        float* d_weight = parts.data() + task * sums;
        norm_gradient(values_of<decltype(t)>(d_out), values_of<float>(d_residual), values_of<float>(of.sum),
                      values_of<float>(of.mean), values_of<float>(of.inverse_std), values_of<float>(weight), part,
                      d_sum, d_weight, has_bias ? d_weight + width : nullptr);
      });
    });
    gradients.weight = add_up(parts, sums, 0, width);
    if (has_bias) gradients.bias = add_up(parts, sums, width, width);
    return gradients;
  });
}

at::Tensor bias_activation(const at::Tensor& x, const at::Tensor& bias, Activation activation) {
  return recorded("trainkit::bias_activation", {x, bias}, [&] {
    at::Tensor out = at::empty_like(x);
    for_kind(x.scalar_type(), [&](auto t) {
      using T = decltype(t);
      T* to = writable<T>(out);
      for_tasks(x.size(0), x.size(1), [&](Rows part, int64_t) {
        activate(values_of<T>(x), values_of<float>(bias), activation == Activation::kGeluTanh, part, to);
      });
    });
    return out;
  });
}

BiasGradients bias_activation_backward(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& bias,
                                       Activation activation) {
  return recorded("trainkit::bias_activation_backward", {gradient, x}, [&] {
    BiasGradients gradients{at::empty_like(x), {}};
    const bool tanh = activation == Activation::kGeluTanh;
    for_kind(x.scalar_type(), [&](auto t) {
      using T = decltype(t);
      T* dx = writable<T>(gradients.x);
      const auto work = [&](Rows part, float* d_bias) {
        activate_gradient(values_of<T>(gradient), values_of<T>(x), values_of<float>(bias), tanh, part, dx, d_bias);
      };
      if (bias.defined())
        gradients.bias = sum_of_tasks(x.size(0), x.size(1), work);
      else
        for_tasks(x.size(0), x.size(1), [&](Rows part, int64_t) { work(part, nullptr); });
    });
    return gradients;
  });
}

at::Tensor sum_rows(const at::Tensor& x) {
  return for_kind(x.scalar_type(), [&](auto t) {
    return sum_of_tasks(x.size(0), x.size(1),
                        [&](Rows part, float* sums) { sum_columns(values_of<decltype(t)>(x), part, sums); });
  });
}

}  // namespace trainkit::detail
