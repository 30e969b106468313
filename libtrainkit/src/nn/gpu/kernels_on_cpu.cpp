// The kernels of gpu_kernels.h on the CPU. Written for clarity: they serve memory recording and tests only.
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>

#include "core/machine/parallel.h"
#include "nn/cpu/row_math.h"
#include "nn/gpu/gpu_kernels.h"

namespace trainkit::detail::on_cpu {
namespace {

/// Calls work(index) for 0 .. count - 1 in parallel.
template <typename Work>
void for_each(int64_t count, int64_t values_each, const Work& work) {
  constexpr int64_t kGrain = int64_t{1} << 14;
  parallel_for(0, count, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, values_each)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t index = begin; index < end; ++index) work(index);
               });
}

template <typename T>
void add_parts(const float* parts, int64_t count, int64_t stride, int64_t width, void* sums) {
  for (int64_t c = 0; c < width; ++c) {
    float total = 0;
    for (int64_t part = 0; part < count; ++part) total += parts[part * stride + c];
    static_cast<T*>(sums)[c] = total;
  }
}

/// Sums as a thread of a GPU does: eight values at a time, then single ones.
template <typename T>
ExpSum exp_sum_of(const T* logits, int64_t classes) {
  constexpr int64_t kMany = 8;
  ExpSum all;
  int64_t c = 0;
  for (; c + kMany <= classes; c += kMany) {
    float values[kMany];
    std::copy_n(logits + c, kMany, values);
    add_values(all, values);
  }
  for (; c < classes; ++c) all = merged(all, {logits[c], 1.0f});
  return all;
}

template <typename S, typename P>
void norm_row(const NormArguments& a, int64_t row) {
  const auto* x = static_cast<const S*>(a.x) + row * a.width;
  const auto* added = a.added ? static_cast<const P*>(a.added) + row * a.width : nullptr;
  auto* sum = static_cast<S*>(a.sum) + (added ? row * a.width : 0);
  float total = 0;
  for (int64_t c = 0; c < a.width; ++c) {
    if (added) sum[c] = static_cast<float>(x[c]) + static_cast<float>(added[c]);
    total += added ? sum[c] : x[c];
  }
  const S* values = added ? sum : x;
  const float mean = total / static_cast<float>(a.width);
  float squares = 0;
  for (int64_t c = 0; c < a.width; ++c) squares += (values[c] - mean) * (values[c] - mean);
  const float inverse_std = 1.0f / std::sqrt(squares / static_cast<float>(a.width) + a.eps);
  a.mean[row] = mean;
  a.inverse_std[row] = inverse_std;
  for (int64_t c = 0; c < a.width; ++c) {
    const float term = a.bias ? static_cast<float>(static_cast<const S*>(a.bias)[c]) : 0.0f;
    static_cast<P*>(a.out)[row * a.width + c] =
        normalised(values[c], mean, inverse_std) * static_cast<const S*>(a.weight)[c] + term;
  }
}

template <typename S, typename P>
void norm_gradient_row(const NormGradientArguments& a, int64_t row, float* d_weight, float* d_bias) {
  const auto* d_out = static_cast<const P*>(a.d_out) + row * a.width;
  const auto* sum = static_cast<const S*>(a.sum) + row * a.width;
  const auto* weight = static_cast<const S*>(a.weight);
  const float mean = a.mean[row], inverse_std = a.inverse_std[row];
  NormSums means = {0, 0};
  for (int64_t c = 0; c < a.width; ++c) {
    const float product = d_out[c] * normalised(sum[c], mean, inverse_std);
    means.g += static_cast<float>(d_out[c]) * weight[c];
    means.g_n += product * weight[c];
    d_weight[c] += product;
    if (d_bias) d_bias[c] += d_out[c];
  }
  means.g /= static_cast<float>(a.width);
  means.g_n /= static_cast<float>(a.width);
  for (int64_t c = 0; c < a.width; ++c) {
    const int64_t at = row * a.width + c;
    const float residual = a.d_residual ? static_cast<float>(static_cast<const S*>(a.d_residual)[at]) : 0.0f;
    const float n = normalised(sum[c], mean, inverse_std);
    const float d_sum = residual + norm_gradient(static_cast<float>(d_out[c]) * weight[c], n, means, inverse_std);
    static_cast<S*>(a.d_sum)[at] = d_sum;
    if (a.d_added) static_cast<P*>(a.d_added)[at] = d_sum;
  }
}

template <typename S, typename P>
void gelu_gradient_row(const GeluGradientArguments& a, int64_t row, float* d_bias) {
  for (int64_t c = 0, at = row * a.width; c < a.width; ++c, ++at) {
    const float value = static_cast<float>(static_cast<const P*>(a.x)[at]) + static_cast<const S*>(a.bias)[c];
    const float gradient = static_cast<const P*>(a.d_out)[at] * gelu_slope_of(value, a.by_tanh);
    static_cast<P*>(a.d_x)[at] = gradient;
    d_bias[c] += gradient;
  }
}

void check_targets(const int64_t* target, int64_t rows, int64_t classes, int64_t ignore_index) {
  for (int64_t row = 0; row < rows; ++row) {
    TORCH_CHECK_INDEX(target[row] == ignore_index || (target[row] >= 0 && target[row] < classes),
                      "cross_entropy: target ", target[row], " of row ", row, " is out of range for ", classes,
                      " classes");
  }
}

}  // namespace

void run(const NormArguments& a, Numbers numbers) {
  for_numbers<c10::BFloat16, c10::Half>(numbers, [&](auto s, auto p) {
    for_each(a.rows, a.width, [&](int64_t row) { norm_row<decltype(s), decltype(p)>(a, row); });
  });
}

void run(const NormGradientArguments& a, Numbers numbers) {
  const int64_t parts = parts_of(a.rows, a.width), sums = (a.d_bias ? 2 : 1) * a.width;
  for_numbers<c10::BFloat16, c10::Half>(numbers, [&](auto s, auto p) {
    for_each(parts, a.rows / std::max<int64_t>(1, parts) * a.width, [&](int64_t part) {
      float* d_weight = a.parts + part * sums;
      std::fill(d_weight, d_weight + sums, 0.0f);
      for (int64_t row = part; row < a.rows; row += parts) {
        norm_gradient_row<decltype(s), decltype(p)>(a, row, d_weight, a.d_bias ? d_weight + a.width : nullptr);
      }
    });
    add_parts<decltype(s)>(a.parts, parts, sums, a.width, a.d_weight);
    if (a.d_bias) add_parts<decltype(s)>(a.parts + a.width, parts, sums, a.width, a.d_bias);
  });
}

void run(const GeluArguments& a, Numbers numbers) {
  for_numbers<c10::BFloat16, c10::Half>(numbers, [&](auto s, auto p) {
    for_each(a.rows, a.width, [&](int64_t row) {
      for (int64_t c = 0, at = row * a.width; c < a.width; ++c, ++at) {
        const float value =
            static_cast<float>(static_cast<const decltype(p)*>(a.x)[at]) + static_cast<const decltype(s)*>(a.bias)[c];
        static_cast<decltype(p)*>(a.out)[at] = gelu_of(value, a.by_tanh);
      }
    });
  });
}

void run(const GeluGradientArguments& a, Numbers numbers) {
  const int64_t parts = parts_of(a.rows, a.width);
  for_numbers<c10::BFloat16, c10::Half>(numbers, [&](auto s, auto p) {
    for_each(parts, a.rows / std::max<int64_t>(1, parts) * a.width, [&](int64_t part) {
      float* d_bias = a.parts + part * a.width;
      std::fill(d_bias, d_bias + a.width, 0.0f);
      for (int64_t row = part; row < a.rows; row += parts) {
        gelu_gradient_row<decltype(s), decltype(p)>(a, row, d_bias);
      }
    });
    add_parts<decltype(s)>(a.parts, parts, a.width, a.width, a.d_bias);
  });
}

void run(const CrossEntropyArguments& a, Numbers numbers) {
  check_targets(a.target, a.rows, a.classes, a.ignore_index);
  for_numbers<c10::BFloat16, c10::Half>(numbers, [&](auto, auto logit) {
    for_each(a.rows, a.classes, [&](int64_t row) {
      const auto* logits = static_cast<const decltype(logit)*>(a.logits) + row * a.classes;
      float &max = a.log_sums[2 * row], &log_sum = a.log_sums[2 * row + 1];
      a.losses[row] = max = log_sum = 0;
      if (a.target[row] == a.ignore_index) return;
      const ExpSum all = exp_sum_of(logits, a.classes);
      max = all.max;
      log_sum = std::log(all.sum);
      a.losses[row] = -log_softmax(logits[a.target[row]], max, log_sum);
    });
  });
  run(MeanLossArguments{a.rows, a.ignore_index, a.target, a.losses, a.inverse_count, a.loss}, numbers);
}

void run(const RowLossArguments& a, Numbers numbers) {
  check_targets(a.target, a.rows, a.classes, a.ignore_index);
  for_numbers<c10::BFloat16, c10::Half>(numbers, [&](auto, auto logit) {
    for_each(a.rows, a.classes, [&](int64_t row) {
      auto* logits = static_cast<decltype(logit)*>(a.logits) + row * a.stride;
      const int64_t target = a.target[row];
      a.losses[row] = 0;
      if (target == a.ignore_index) {
        if (a.differentiates) std::fill_n(logits, a.classes, decltype(logit)(0.0f));
        return;
      }
      const ExpSum all = exp_sum_of(logits, a.classes);
      const float log_sum = std::log(all.sum);
      a.losses[row] = -log_softmax(logits[target], all.max, log_sum);
      if (!a.differentiates) return;
      for (int64_t c = 0; c < a.classes; ++c) {
        logits[c] = cross_entropy_slope(log_softmax(logits[c], all.max, log_sum), c == target, 1.0f);
      }
    });
  });
}

void run(const MeanLossArguments& a, Numbers numbers) {
  for_numbers<c10::BFloat16, c10::Half>(numbers, [&](auto loss, auto) {
    float sum = 0, count = 0;
    for (int64_t row = 0; row < a.rows; ++row) {
      if (a.target[row] == a.ignore_index) continue;
      sum += a.losses[row];
      count += 1;
    }
    *a.inverse_count = count > 0 ? 1.0f / count : 0.0f;
    *static_cast<decltype(loss)*>(a.loss) = sum / count;
  });
}

void run(const CrossEntropyGradientArguments& a, Numbers numbers) {
  for_numbers<c10::BFloat16, c10::Half>(numbers, [&](auto loss, auto logit) {
    const float scale = *static_cast<const decltype(loss)*>(a.d_loss) * *a.inverse_count;
    for_each(a.rows, a.classes, [&](int64_t row) {
      const auto* logits = static_cast<const decltype(logit)*>(a.logits) + row * a.classes;
      auto* gradient = static_cast<decltype(logit)*>(a.d_logits) + row * a.classes;
      const float max = a.log_sums[2 * row], log_sum = a.log_sums[2 * row + 1];
      for (int64_t c = 0; c < a.classes; ++c) {
        gradient[c] = a.target[row] == a.ignore_index
                          ? 0.0f
                          : cross_entropy_slope(log_softmax(logits[c], max, log_sum), c == a.target[row], scale);
      }
    });
  });
}

void run(const EmbeddingGradientArguments& a, Numbers) {
  for (int64_t i = 0; i < a.lookups; ++i) {
    float* const row = a.d_weight + a.ids[i] * a.width;
    for (int64_t c = 0; c < a.width; ++c) row[c] += a.d_out[i * a.width + c];
  }
}

}  // namespace trainkit::detail::on_cpu
