#include <ATen/ops/mm_cpu_dispatch.h>
#include <stdlib.h>

#include "test_util.h"
#include "trainkit/nn/linear.h"

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
    REQUIRE_FALSE(use_onednn_matmul());
    TRAINKIT_SKIP("LibTorch's products with oneDNN need AVX-512");
  }
#endif
  REQUIRE(use_onednn_matmul());
}

}  // namespace

TEST_CASE("Matrix products with oneDNN equal LibTorch's within float32 rounding", "[nn][onednn_matmul]") {
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
  }
}

TEST_CASE("Linear and its gradients use oneDNN, with three dimensions and with bias", "[nn][onednn_matmul]") {
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

TEST_CASE("Small products and other dtypes use LibTorch", "[nn][onednn_matmul]") {
  use_onednn();
  const at::Tensor a = torch::randn({64, 128}), b = torch::randn({128, 10});
  CHECK(at::mm(a, b).equal(at::cpu::mm(a, b)));
  const at::Tensor whole = torch::randint(9, {300, 300}, at::kLong);
  CHECK(at::mm(whole, whole).equal(at::cpu::mm(whole, whole)));
  CHECK_THROWS_AS(at::mm(torch::randn({2000, 900}), torch::randn({800, 1000})), c10::Error);  // incompatible shapes
}
