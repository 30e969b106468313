#include "distributed/batch_norm/batch_norm_kernel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/device/gpu_operations.h"
#include "core/machine/row_tasks.h"
#include "core/tensors/recorded.h"
#include "core/tensors/vectors.h"

namespace trainkit::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kBlock = 4;                 // channel vectors whose sums stay in registers
constexpr int64_t kChunk = int64_t{1} << 15;  // values summed in float32 per task
constexpr int64_t kChunkRows = 1024;          // upper limit of rows per task
constexpr int64_t kAhead = 2048;              // prefetch distance in bytes
constexpr int64_t kSampledRows = 16;          // rows that estimate the mean

/// Loads a value and prefetches about one page ahead: the hardware prefetcher does not follow three streams across page
/// boundaries.
template <typename T>
TRAINKIT_INLINE void load_ahead(const T* from, Floats& to) {
  __builtin_prefetch(reinterpret_cast<const char*>(from) + kAhead);
  load(from, to);
}
template <typename T>
TRAINKIT_INLINE void load_ahead(const T* from, float& to) {
  load(from, to);
}

/// Clamps x at zero from below and keeps NaN.
TRAINKIT_INLINE void clamp_below_zero(Floats& x) { x = x < 0 ? Floats{} : x; }
TRAINKIT_INLINE void clamp_below_zero(float& x) { x = x < 0 ? 0 : x; }
/// Sets x to zero where y <= 0, as the backward of at::relu does.
TRAINKIT_INLINE void zero_unless_positive(const Floats& y, Floats& x) { x = y <= 0 ? Floats{} : x; }
TRAINKIT_INLINE void zero_unless_positive(float y, float& x) { x = y <= 0 ? 0 : x; }

/// Accumulates two sums per channel over the rows, as `term` defines them, for V vectors (or scalars) from channel
/// `first` on.
template <typename Number, int64_t V, typename Term>
TRAINKIT_INLINE void sum_block(Rows rows, int64_t first, float* sums, Term term) {
  constexpr int64_t kEach = sizeof(Number) / sizeof(float);  // NOLINT(bugprone-sizeof-expression): 1 for a float
  Number s1[V] = {}, s2[V] = {};
  for (int64_t row = rows.begin; row < rows.end; ++row) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < V; ++v) term(row * rows.width, first + v * kEach, s1[v], s2[v]);
  }
  for (int64_t v = 0; v < V; ++v) {
    store(s1[v], sums + first + v * kEach);
    store(s2[v], sums + rows.width + first + v * kEach);
  }
}

// Accumulates two sums per channel for all channels: blocks of vectors first, then single vectors, then scalars.
template <typename Term>
TRAINKIT_INLINE void sum_channels(Rows rows, float* sums, Term term) {
  int64_t c = 0;
  for (; c + kBlock * kLanes <= rows.width; c += kBlock * kLanes) sum_block<Floats, kBlock>(rows, c, sums, term);
  for (; c + kLanes <= rows.width; c += kLanes) sum_block<Floats, 1>(rows, c, sums, term);
  for (; c < rows.width; ++c) sum_block<float, 1>(rows, c, sums, term);
}

/// Calls step(offset of the row, channel, a default Number of the width to use) for each channel of each row.
template <typename Step>
TRAINKIT_INLINE void each_value(Rows rows, Step step) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    int64_t c = 0;
    for (; c + kLanes <= rows.width; c += kLanes) step(row * rows.width, c, Floats{});
    for (; c < rows.width; ++c) step(row * rows.width, c, float{});
  }
}

#define TRAINKIT_LAMBDA __attribute__((always_inline))

/// Sums x - shift and its square per channel.
template <typename T>
TRAINKIT_INLINE void sum_rows(const T* x, const float* shift, Rows rows, float* sums) {
  sum_channels(rows, sums, [=](int64_t at, int64_t c, auto& s1, auto& s2) TRAINKIT_LAMBDA {
    std::remove_reference_t<decltype(s1)> value, center;
    load_ahead(x + at + c, value);
    load(shift + c, center);
    value -= center;
    s1 += value;
    s2 += value * value;
  });
}

/// Computes y = scale x + offset (+ residual), clamped at 0 with kRelu.
template <typename T, bool kRelu, bool kResidual>
TRAINKIT_INLINE void write_rows(const T* x, const T* residual, const float* scale, const float* offset, Rows rows,
                                T* y) {
  each_value(rows, [=](int64_t at, int64_t c, auto value) TRAINKIT_LAMBDA {
    decltype(value) a, b, r;
    load_ahead(x + at + c, value);
    load(scale + c, a);
    load(offset + c, b);
    value = value * a + b;
    if constexpr (kResidual) {
      load_ahead(residual + at + c, r);
      value += r;
    }
    if constexpr (kRelu) clamp_below_zero(value);
    store(value, y + at + c);
  });
}

/// Sums g and g (x - mean) per channel, where g is dy masked by y > 0 with kRelu, else dy. With kResidual also writes
/// g.
template <typename T, bool kRelu, bool kResidual>
TRAINKIT_INLINE void sum_gradient_rows(const T* dy, const T* y, const T* x, const float* mean, Rows rows, T* g,
                                       float* sums) {
  sum_channels(rows, sums, [=](int64_t at, int64_t c, auto& s1, auto& s2) TRAINKIT_LAMBDA {
    std::remove_reference_t<decltype(s1)> value, other, center;
    load_ahead(dy + at + c, value);
    if constexpr (kRelu) {
      load_ahead(y + at + c, other);
      zero_unless_positive(other, value);
    }
    if constexpr (kResidual) store(value, g + at + c);
    load_ahead(x + at + c, other);
    load(mean + c, center);
    s1 += value;
    s2 += value * (other - center);
  });
}

/// Computes dx = scale g + slope x + offset.
template <typename T, bool kRelu>
TRAINKIT_INLINE void write_gradient_rows(const T* dy, const T* y, const T* x, const float* scale, const float* slope,
                                         const float* offset, Rows rows, T* dx) {
  each_value(rows, [=](int64_t at, int64_t c, auto value) TRAINKIT_LAMBDA {
    decltype(value) other, a, s, b;
    load_ahead(dy + at + c, value);
    if constexpr (kRelu) {
      load_ahead(y + at + c, other);
      zero_unless_positive(other, value);
    }
    load_ahead(x + at + c, other);
    load(scale + c, a);
    load(slope + c, s);
    load(offset + c, b);
    store(value * a + other * s + b, dx + at + c);
  });
}

// Defined by a macro for each dtype, because functions compiled for several instruction sets (TRAINKIT_VECTORIZED)
// cannot be templates.
#define TRAINKIT_KERNELS(T)                                                                                            \
  TRAINKIT_VECTORIZED void sum(const T* x, const float* shift, Rows rows, float* sums) {                               \
    sum_rows(x, shift, rows, sums);                                                                                    \
  }                                                                                                                    \
  TRAINKIT_VECTORIZED void write(const T* x, const T* residual, const float* scale, const float* offset, bool relu,    \
                                 Rows rows, T* y) {                                                                    \
    if (relu && residual) return write_rows<T, true, true>(x, residual, scale, offset, rows, y);                       \
    if (relu) return write_rows<T, true, false>(x, residual, scale, offset, rows, y);                                  \
    if (residual) return write_rows<T, false, true>(x, residual, scale, offset, rows, y);                              \
    write_rows<T, false, false>(x, residual, scale, offset, rows, y);                                                  \
  }                                                                                                                    \
  TRAINKIT_VECTORIZED void sum_gradient(const T* dy, const T* y, const T* x, const float* mean, Rows rows, T* g,       \
                                        float* sums) {                                                                 \
    if (y && g) return sum_gradient_rows<T, true, true>(dy, y, x, mean, rows, g, sums);                                \
    if (y) return sum_gradient_rows<T, true, false>(dy, y, x, mean, rows, g, sums);                                    \
    if (g) return sum_gradient_rows<T, false, true>(dy, y, x, mean, rows, g, sums);                                    \
    sum_gradient_rows<T, false, false>(dy, y, x, mean, rows, g, sums);                                                 \
  }                                                                                                                    \
  TRAINKIT_VECTORIZED void write_gradient(const T* dy, const T* y, const T* x, const float* scale, const float* slope, \
                                          const float* offset, Rows rows, T* dx) {                                     \
    if (y) return write_gradient_rows<T, true>(dy, y, x, scale, slope, offset, rows, dx);                              \
    write_gradient_rows<T, false>(dy, y, x, scale, slope, offset, rows, dx);                                           \
  }
TRAINKIT_KERNELS(float)
TRAINKIT_KERNELS(uint16_t)  // bfloat16

// Note [Sums of batch norm]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// Forward needs mean and variance in one pass over x. E[x^2] - E[x]^2 cancels if the mean is large compared with the
// deviation, so x is first shifted by an estimate of its mean (estimate_mean). The sums of a chunk are float32; chunks
// are added in order in float64. Chunk boundaries depend only on the shape, so that results are bitwise independent of
// the number of threads. A negative variance from rounding is clamped to zero.

int64_t rows_of_chunk(int64_t channels) { return std::clamp<int64_t>(kChunk / channels, 1, kChunkRows); }

/// Calls work(rows, index of the chunk) for all chunks, in parallel.
template <typename Work>
void for_chunks(int64_t rows, int64_t channels, const Work& work) {
  for_row_tasks(rows, channels, rows_of_chunk(channels), work);
}

/// Sums two values per channel over all rows. Calls fill(rows, float[2][channels]) for each chunk in parallel, then
/// adds the chunks in order in float64, so that the result does not depend on the number of threads.
template <typename Fill>
std::vector<double> sums_of_chunks(int64_t rows, int64_t channels, const Fill& fill) {
  const int64_t chunks = count_tasks(rows, rows_of_chunk(channels));
  std::vector<float> parts(chunks * 2 * channels);
  for_chunks(rows, channels, [&](Rows part, int64_t chunk) { fill(part, parts.data() + chunk * 2 * channels); });
  std::vector<double> sums(2 * channels);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t k = 0; k < 2 * channels; ++k) sums[k] += parts[chunk * 2 * channels + k];
  }
  return sums;
}

/// Estimates the mean of each channel from rows sampled across x. Sums of x - estimate avoid cancellation in the
/// variance.
template <typename T>
// Estimates the mean of each channel from rows sampled across x. See Note [Sums of batch norm].
std::vector<float> estimate_mean(const T* x, int64_t rows, int64_t channels) {
  const int64_t samples = std::min(rows, kSampledRows);
  std::vector<float> mean(channels);
  for (int64_t sample = 0; sample < samples; ++sample) {
    const T* row = x + (rows - 1) * sample / std::max<int64_t>(1, samples - 1) * channels;
    for (int64_t c = 0; c < channels; ++c) {
      float value = 0;
      load(row + c, value);
      mean[c] += value / static_cast<float>(samples);
    }
  }
  return mean;
}

struct FusedBatchNorm : torch::autograd::Function<FusedBatchNorm> {
  template <typename T>
  static at::Tensor run_forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& residual,
                                const at::Tensor& weight, const at::Tensor& bias, const BatchNormRunning& running,
                                bool relu) {
    const int64_t channels = x.size(1), rows = x.numel() / channels;
    const T* from = values_of<T>(x);
    const std::vector<float> shift = estimate_mean(from, rows, channels);
    const std::vector<double> sums =
        sums_of_chunks(rows, channels, [&](Rows part, float* to) { sum(from, shift.data(), part, to); });

    at::Tensor mean = at::empty({channels}, weight.options()), inverse_std = at::empty_like(mean);
    std::vector<float> scale(channels), offset(channels);
    const auto* w = weight.const_data_ptr<float>();
    const auto* b = bias.const_data_ptr<float>();
    auto* running_mean = running.mean.mutable_data_ptr<float>();
    auto* running_var = running.var.mutable_data_ptr<float>();
    const auto count = static_cast<double>(rows);
    for (int64_t c = 0; c < channels; ++c) {
      const double from_shift = sums[c] / count, center = shift[c] + from_shift;
      double var = sums[channels + c] / count - from_shift * from_shift;
      var = var < 0 ? 0 : var;
      const double inverse = 1 / std::sqrt(var + running.eps);
      mean.mutable_data_ptr<float>()[c] = static_cast<float>(center);
      inverse_std.mutable_data_ptr<float>()[c] = static_cast<float>(inverse);
      scale[c] = static_cast<float>(w[c] * inverse);
      offset[c] = static_cast<float>(b[c] - center * w[c] * inverse);
      const auto toward = [&](float old, double now) {
        return static_cast<float>(old + running.momentum * (now - old));
      };
      running_mean[c] = toward(running_mean[c], center);
      running_var[c] = toward(running_var[c], var * count / (count - 1));
    }
    at::Tensor y = at::empty_like(x);
    T* to = writable<T>(y);
    for_chunks(rows, channels, [&](Rows part, int64_t) {
      write(from, values_of<T>(residual), scale.data(), offset.data(), relu, part, to);
    });
    context->save_for_backward({x, weight, mean, inverse_std, relu ? y : at::Tensor()});
    return y;
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::optional<at::Tensor>& to_add,
                            const at::Tensor& weight, const at::Tensor& bias, const BatchNormRunning& running,
                            bool relu) {
    const at::Tensor residual = to_add.value_or(at::Tensor());
    context->saved_data["residual"] = residual.defined() && residual.requires_grad();
    context->saved_data["eps"] = running.eps;
    return x.scalar_type() == at::kFloat ? run_forward<float>(context, x, residual, weight, bias, running, relu)
                                         : run_forward<uint16_t>(context, x, residual, weight, bias, running, relu);
  }

  template <typename T>
  static variable_list run_backward(const at::Tensor& dy, const variable_list& saved, bool of_residual) {
    const at::Tensor &x = saved[0], &weight = saved[1], &y = saved[4];
    const int64_t channels = x.size(1), rows = x.numel() / channels;
    const auto* mean = saved[2].const_data_ptr<float>();
    const auto* inverse_std = saved[3].const_data_ptr<float>();
    at::Tensor g = of_residual ? at::empty_like(x) : at::Tensor();
    T* to_g = writable<T>(g);
    const std::vector<double> sums = sums_of_chunks(rows, channels, [&](Rows part, float* to) {
      sum_gradient(values_of<T>(dy), values_of<T>(y), values_of<T>(x), mean, part, to_g, to);
    });

    at::Tensor d_weight = at::empty_like(weight), d_bias = at::empty_like(weight);
    std::vector<float> scale(channels), slope(channels), offset(channels);
    const auto* w = weight.const_data_ptr<float>();
    for (int64_t c = 0; c < channels; ++c) {
      const double inverse = inverse_std[c], sum_g = sums[c], sum_gx = sums[channels + c] * inverse;
      d_bias.mutable_data_ptr<float>()[c] = static_cast<float>(sum_g);
      d_weight.mutable_data_ptr<float>()[c] = static_cast<float>(sum_gx);
      // dx = weight / std (g - mean(g) - (x - mean) / std mean(g (x - mean) / std))
      const double a = w[c] * inverse, s = -a * inverse * sum_gx / static_cast<double>(rows);
      scale[c] = static_cast<float>(a);
      slope[c] = static_cast<float>(s);
      offset[c] = static_cast<float>(-a * sum_g / static_cast<double>(rows) - s * mean[c]);
    }
    at::Tensor dx = at::empty_like(x);
    T* to_dx = writable<T>(dx);
    const T* from = of_residual ? to_g : values_of<T>(dy);
    const T* mask = of_residual ? nullptr : values_of<T>(y);
    for_chunks(rows, channels, [&](Rows part, int64_t) {
      write_gradient(from, mask, values_of<T>(x), scale.data(), slope.data(), offset.data(), part, to_dx);
    });
    return {dx, g, d_weight, d_bias, {}, {}};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor dy = gradients[0].to(x.scalar_type()).contiguous(x.suggest_memory_format());
    const bool of_residual = context->saved_data["residual"].toBool();
    if (c10::GradMode::is_enabled()) {  // LibTorch's gradient has a derivative
      const at::Tensor g = saved[4].defined() ? at::threshold_backward(dy, saved[4], 0) : dy;
      const auto [dx, d_weight, d_bias] =
          at::native_batch_norm_backward(g, x, saved[1], {}, {}, saved[2], saved[3], /*train=*/true,
                                         context->saved_data["eps"].toDouble(), {true, true, true});
      return {dx, of_residual ? g : at::Tensor(), d_weight, d_bias, {}, {}};
    }
    return x.scalar_type() == at::kFloat ? run_backward<float>(dy, saved, of_residual)
                                         : run_backward<uint16_t>(dy, saved, of_residual);
  }
};

bool is_float(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
}

/// Returns whether the channels of each position are contiguous and the positions follow one another.
bool channels_are_last(const at::Tensor& x) {
  switch (x.dim()) {
    case 2:
      return x.is_contiguous();
    case 4:
      return x.is_contiguous(at::MemoryFormat::ChannelsLast);
    case 5:
      return x.is_contiguous(at::MemoryFormat::ChannelsLast3d);
    default:
      return false;
  }
}

}  // namespace

bool has_fused_batch_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                          const at::Tensor& bias) {
  if (GpuOperations::wanted()) return false;
  if (!x.is_cpu() || (x.scalar_type() != at::kFloat && x.scalar_type() != at::kBFloat16) || x.numel() == 0)
    return false;
  if (!channels_are_last(x) || !is_float(weight) || !is_float(bias)) return false;
  return !residual.defined() || (residual.is_cpu() && residual.scalar_type() == x.scalar_type() &&
                                 residual.sizes() == x.sizes() && channels_are_last(residual));
}

at::Tensor fused_batch_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                            const at::Tensor& bias, const BatchNormRunning& running, bool relu) {
  return recorded("trainkit::batch_norm", {x, residual, weight, bias}, [&] {
    // autograd::Function accepts an empty optional but not an undefined tensor
    const auto to_add = residual.defined() ? std::optional(residual) : std::nullopt;
    return FusedBatchNorm::apply(x, to_add, weight, bias, running, relu);
  });
}

}  // namespace trainkit::detail
