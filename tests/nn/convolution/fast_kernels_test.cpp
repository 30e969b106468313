#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <stdlib.h>

#include "test_util.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/nn/functional.h"

using namespace trainkit;

namespace {

double error_of(const at::Tensor& result, const at::Tensor& exact) {
  return ((result.to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
}

/// Uses oneDNN on any CPU on which LibTorch can.
void use_onednn() {
  setenv("TRAINKIT_ONEDNN_MATMUL", "1", 1);
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512bw")) {
    REQUIRE_FALSE(use_fast_kernels());
    TRAINKIT_SKIP("LibTorch's products with oneDNN need AVX-512");
  }
#endif
  REQUIRE(use_fast_kernels());
}

}  // namespace

TEST_CASE("Matrix products with oneDNN equal LibTorch's within float32 rounding", "[nn][fast_kernels]") {
  use_onednn();
  torch::manual_seed(1);
  for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{{768, 128, 384}, {1000, 129, 67}, {64, 2048, 50}}) {
    const at::Tensor a = torch::randn({m, k}), b = torch::randn({k, n}), c = torch::randn({n});
    const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    CHECK(error_of(at::mm(a, b), exact) < 3e-6);
    CHECK(error_of(at::mm(a.t().contiguous().t(), b.t().contiguous().t()), exact) < 3e-6);  // views
    CHECK(error_of(at::mm(torch::randn({m, 2 * k}).slice(1, 0, k).copy_(a), b), exact) < 3e-6);
    CHECK(error_of(at::addmm(c, a, b), exact + c) < 3e-6);
    CHECK(error_of(at::addmm(c, a, b, 0.5, 2), 2 * exact + 0.5 * c) < 3e-6);
    CHECK(error_of(at::addmm(torch::full({n}, NAN), a, b, 0, 1), exact) < 3e-6);  // beta = 0: not read
    CHECK(at::addmm(torch::ones({m, n}), a, b, 0.5, 0).equal(torch::full({m, n}, 0.5f)));
    CHECK(torch::ones({m, n}).addmm_(a, b, 0.5, 0).equal(torch::full({m, n}, 0.5f)));

    at::Tensor out = torch::full({m, n}, NAN), empty = torch::empty({0}), columns = torch::empty({n, m}).t();
    CHECK(error_of(at::mm_out(out, a, b), exact) < 3e-6);
    CHECK(out.equal(at::mm(a, b)));  // oneDNN computed it
    CHECK(error_of(at::mm_out(empty, a, b), exact) < 3e-6);
    CHECK(error_of(at::mm_out(columns, a, b), exact) < 3e-6);
    const at::Tensor start = torch::randn({m, n});
    out.copy_(start);
    CHECK(error_of(at::addmm_out(out, out, a, b), exact + start) < 3e-6);
    CHECK(error_of(at::addmm_out(out, start, a, b, 0.5, 2), 2 * exact + 0.5 * start) < 3e-6);
    out.fill_(NAN);
    CHECK(error_of(at::addmm_out(out, out, a, b, 0, 1), exact) < 3e-6);
  }
  const at::Tensor square = torch::randn({256, 256}), exact = at::mm(square.to(at::kDouble), square.to(at::kDouble));
  at::Tensor itself = square.clone();
  CHECK(error_of(at::addmm_out(itself, square, square, square, 0, 1), exact) < 3e-6);
}

TEST_CASE("Linear and its gradients use oneDNN, with three dimensions and with bias", "[nn][fast_kernels]") {
  use_onednn();
  torch::manual_seed(2);
  torch::nn::Linear layer(256, 96), exact(256, 96);
  exact->to(at::kDouble);
  {
    const torch::NoGradGuard no_grad;
    exact->weight.copy_(layer->weight);
    exact->bias.copy_(layer->bias);
  }
  const at::Tensor x = torch::randn({8, 32, 256}).requires_grad_();
  const at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_();
  const at::Tensor dy = torch::randn({8, 32, 96});
  layer->forward(x).backward(dy);
  exact->forward(x64).backward(dy.to(at::kDouble));
  CHECK(error_of(x.grad(), x64.grad()) < 3e-6);
  CHECK(error_of(layer->weight.grad(), exact->weight.grad()) < 3e-6);
  CHECK(error_of(layer->bias.grad(), exact->bias.grad()) < 3e-6);
}

TEST_CASE("Small products and other dtypes use LibTorch", "[nn][fast_kernels]") {
  use_onednn();
  const at::Tensor a = torch::randn({64, 128}), b = torch::randn({128, 10});
  CHECK(at::mm(a, b).equal(at::cpu::mm(a, b)));
  const at::Tensor whole = torch::randint(9, {300, 300}, at::kLong);
  CHECK(at::mm(whole, whole).equal(at::cpu::mm(whole, whole)));
  CHECK_THROWS_AS(at::mm(torch::randn({2000, 900}), torch::randn({800, 1000})), c10::Error);  // incompatible shapes
}

TEST_CASE("bfloat16 products have the rounding of one conversion, without and with AVX-512", "[nn][fast_kernels]") {
  use_fast_kernels();
  torch::manual_seed(3);
  for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{{96, 320, 64}, {1, 7, 3}, {5, 0, 4}, {0, 8, 2}}) {
    const at::Tensor a = torch::randn({m, k}, at::kBFloat16), b = torch::randn({k, n}, at::kBFloat16);
    const at::Tensor c = torch::randn({n}, at::kBFloat16);
    const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    const auto check = [&](const at::Tensor& result, const at::Tensor& expected) {
      CHECK(result.scalar_type() == at::kBFloat16);
      CHECK(torch::allclose(result.to(at::kDouble), expected, /*rtol=*/0.005, /*atol=*/1e-4 * static_cast<double>(k)));
    };
    check(at::mm(a, b), exact);
    check(at::mm(a.t().contiguous().t(), b.t().contiguous().t()), exact);  // views
    check(at::addmm(c, a, b), exact + c.to(at::kDouble));
    check(at::addmm(c, a, b, 0.5, 2), 2 * exact + 0.5 * c.to(at::kDouble));
    check(at::addmm(torch::full({n}, NAN, at::kBFloat16), a, b, 0, 1), exact);  // beta = 0: not read
    check(at::bmm(a.unsqueeze(0), b.unsqueeze(0)).squeeze(0), exact);
    at::Tensor out = torch::empty({0}, at::kBFloat16);
    check(at::mm_out(out, a, b), exact);
    at::Tensor columns = torch::empty({n, m}, at::kBFloat16).t();
    check(at::mm_out(columns, a, b), exact);
    check(at::addmm_out(out, c, a, b, 0.5, 2), 2 * exact + 0.5 * c.to(at::kDouble));
  }
  const at::Tensor a = torch::randn({4, 5}, at::kBFloat16);
  CHECK_THROWS_AS(at::mm(a, a), c10::Error);                     // incompatible shapes
  CHECK_THROWS_AS(at::mm(a, torch::randn({5, 4})), c10::Error);  // and dtypes
  at::Tensor out = torch::empty({4, 4});
  CHECK_THROWS_AS(at::mm_out(out, a, a.t()), c10::Error);
}

TEST_CASE("Convolutions under autocast to bfloat16 equal float32 ones within its rounding", "[nn][fast_kernels]") {
  use_fast_kernels();
  torch::manual_seed(4);
  for (const int64_t dims : {1, 2, 3}) {
    std::vector<int64_t> image{2, 4}, kernel{6, 4};
    image.insert(image.end(), static_cast<size_t>(dims), 7);
    kernel.insert(kernel.end(), static_cast<size_t>(dims), 3);
    const at::Tensor x = torch::randn(image).requires_grad_(), weight = torch::randn(kernel).requires_grad_();
    const at::Tensor bias = torch::randn({6}).requires_grad_();
    const auto convolve = [&] {
      return dims == 1   ? at::conv1d(x, weight, bias)
             : dims == 2 ? at::conv2d(x, weight, bias)
                         : at::conv3d(x, weight, bias);
    };
    const at::Tensor expected = convolve();
    at::Tensor y;
    {
      const AutocastGuard autocast(at::kCPU, at::kBFloat16);
      y = convolve();
    }
    CHECK(error_of(y, expected) < 0.02);
    const auto gradients_of = [&](const at::Tensor& out) {
      return torch::autograd::grad({out.to(at::kFloat).square().sum()}, {x, weight, bias});
    };
    const auto gradients = gradients_of(y), exact = gradients_of(expected);
    for (size_t k = 0; k < 3; ++k) {
      CHECK(gradients[k].scalar_type() == at::kFloat);
      CHECK(error_of(gradients[k], exact[k]) < 0.03);
    }
  }
}
