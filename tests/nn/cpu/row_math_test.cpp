// The formulas of the GPU kernels, compared with LibTorch in float64.
#include "nn/cpu/row_math.h"

#include <torch/torch.h>

#include <span>

#include "nn/gpu/gpu_kernels.h"
#include "test_util.h"

using namespace trainkit::detail;

namespace {

/// f of each value in float64.
template <typename F>
at::Tensor mapped(const at::Tensor& values, const F& f) {
  at::Tensor out = values.to(at::kFloat).clone();
  for (float& value : std::span(out.mutable_data_ptr<float>(), out.numel())) value = f(value);
  return out.to(at::kDouble);
}

double worst(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

float log_of(ExpSum all) { return all.max + std::log(all.sum); }

template <size_t count>
float log_sum_of(const std::vector<float>& values, ExpSum start = {}) {
  size_t i = 0;
  for (; i + count <= values.size(); i += count) {
    float some[count];
    std::copy_n(values.begin() + i, count, some);
    add_values(start, some);
  }
  for (; i < values.size(); ++i) start = merged(start, {values[i], 1.0f});
  return log_of(start);
}

}  // namespace

TEST_CASE("GELU and its derivative equal LibTorch's in float64 within float32 rounding, with erf and with tanh") {
  const at::Tensor x = torch::linspace(-12, 12, 4801, at::kDouble).to(at::kFloat).to(at::kDouble).requires_grad_();
  for (const bool by_tanh : {false, true}) {
    CAPTURE(by_tanh);
    const at::Tensor expected = at::gelu(x, by_tanh ? "tanh" : "none");
    const at::Tensor slope = torch::autograd::grad({expected.sum()}, {x})[0];
    CHECK(worst(mapped(x.detach(), [&](float v) { return gelu_of(v, by_tanh); }), expected.detach()) < 1e-6);
    CHECK(worst(mapped(x.detach(), [&](float v) { return gelu_slope_of(v, by_tanh); }), slope) < 1e-6);
    CHECK(gelu_of(-1e6f, by_tanh) == 0);
    CHECK(gelu_of(1e6f, by_tanh) == 1e6f);
    CHECK(gelu_slope_of(-1e6f, by_tanh) == 0);
    CHECK(gelu_slope_of(1e6f, by_tanh) == 1);
    CHECK(std::isnan(gelu_of(NAN, by_tanh)));
  }
}

TEST_CASE("The gradient of a layer norm's value equals LibTorch's in float64") {
  torch::manual_seed(1);
  const at::Tensor x = (torch::randn({1, 40}, at::kDouble) * 3 + 7).requires_grad_();
  const at::Tensor weight = torch::randn({40}, at::kDouble), d_out = torch::randn({1, 40}, at::kDouble);
  const auto [out, mean, inverse_std] = at::native_layer_norm(x, {40}, weight, {}, 1e-5);
  const at::Tensor expected = torch::autograd::grad({out}, {x}, {d_out})[0];
  const at::Tensor g = (d_out * weight)[0], n = ((x - mean) * inverse_std)[0].detach();
  const NormSums means = {g.mean().item<float>(), (g * n).mean().item<float>()};
  for (int64_t c = 0; c < 40; ++c) {
    const float value = normalised(x[0][c].item<float>(), mean.item<float>(), inverse_std.item<float>());
    CHECK(value == Approx(n[c].item<double>()).margin(1e-5));
    CHECK(norm_gradient(g[c].item<float>(), value, means, inverse_std.item<float>()) ==
          Approx(expected[0][c].item<double>()).margin(1e-5));
  }
}

TEST_CASE("The logarithm of a sum of exponentials equals LibTorch's for any grouping of its values") {
  torch::manual_seed(2);
  for (const double spread : {0.0, 1.0, 100.0, 1e30}) {
    for (const int64_t count : {1, 2, 7, 16, 101}) {
      CAPTURE(spread, count);
      const at::Tensor x = (torch::randn({count}, at::kDouble) * spread).to(at::kFloat);
      const std::vector<float> values(x.const_data_ptr<float>(), x.const_data_ptr<float>() + count);
      const double expected = at::logsumexp(x.to(at::kDouble), 0).item<double>();
      const auto is_near = [&](float value) { return value == Approx(expected).epsilon(2e-7).margin(2e-6); };
      CHECK(is_near(log_sum_of<1>(values)));
      CHECK(is_near(log_sum_of<8>(values)));
      ExpSum halves[2];
      for (size_t i = 0; i < values.size(); ++i) halves[i % 2] = merged(halves[i % 2], {values[i], 1.0f});
      CHECK(is_near(log_of(merged(halves[0], halves[1]))));
      CHECK(is_near(log_of(merged(merged({}, halves[1]), merged(halves[0], {})))));
    }
  }
}

TEST_CASE("A sum of exponentials propagates non-finite numbers") {
  const float infinity = INFINITY;
  CHECK(log_of(merged({}, {})) == -infinity);
  CHECK(log_sum_of<1>({-infinity, -infinity}) == -infinity);
  CHECK(log_sum_of<2>({-infinity, -infinity}) == -infinity);
  CHECK(log_sum_of<2>({-infinity, 3, -infinity, -infinity}) == 3);
  CHECK(log_sum_of<2>({3, 4, NAN}) != log_sum_of<2>({3, 4, NAN}));
  for (const std::vector<float>& values :
       std::vector<std::vector<float>>{{NAN, 1}, {1, NAN}, {NAN, NAN}, {-infinity, NAN}}) {
    CHECK(std::isnan(log_sum_of<1>(values)));
    CHECK(std::isnan(log_sum_of<2>(values)));
  }
  // As LibTorch's log_softmax, which subtracts the largest: infinity minus infinity.
  CHECK(std::isnan(log_sum_of<1>({infinity, 1})));
  CHECK(std::isnan(log_sum_of<2>({1, infinity})));
}

TEST_CASE("The gradient of cross-entropy for a logit equals LibTorch's in float64") {
  torch::manual_seed(3);
  for (const double shift : {0.0, 250.0}) {
    const at::Tensor x = (torch::randn({1, 30}) * 4 + shift).to(at::kDouble).requires_grad_();
    const at::Tensor loss = at::cross_entropy_loss(x, torch::tensor({11}));
    const at::Tensor expected = torch::autograd::grad({loss * 0.25}, {x})[0];
    const float max = x.max().item<float>();
    const float log_sum = at::logsumexp(x - max, 1).item<float>();
    for (int64_t c = 0; c < 30; ++c) {
      CHECK(cross_entropy_slope(log_softmax(x[0][c].item<float>(), max, log_sum), c == 11, 0.25f) ==
            Approx(expected[0][c].item<double>()).epsilon(1e-6).margin(1e-8));
    }
  }
}

TEST_CASE("Sums over rows are divided into parts that are not empty and fit the buffer") {
  for (const int64_t width : {1, 64, 768, 3072, 50257, 10'000'000}) {
    for (const int64_t rows : {1, 15, 16, 17, 1000, 100'000, 10'000'000}) {
      CAPTURE(rows, width);
      const int64_t parts = parts_of(rows, width);
      CHECK(parts >= 1);
      CHECK(parts <= rows);
      CHECK(parts <= most_parts(width));
    }
  }
  CHECK(parts_of(0, 8) == 0);
}
