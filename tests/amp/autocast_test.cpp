#include "trainkit/amp/autocast.h"

#include <ATen/autocast_mode.h>

#include <thread>

#include "test_util.h"

namespace trainkit {
namespace {

at::ScalarType product_type() {
  const at::Tensor a = torch::ones({2, 2});
  return at::mm(a, a).scalar_type();
}

TEST_CASE("AutocastGuard computes matrix products in its dtype inside the scope and in float32 outside") {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    {
      const AutocastGuard amp(at::kCPU, dtype);
      CHECK(product_type() == dtype);
    }
    CHECK(product_type() == at::kFloat);
  }
}

TEST_CASE("AutocastGuard nests, and an inner guard can disable it or change the dtype") {
  const AutocastGuard outer(at::kCPU, at::kBFloat16);
  {
    const AutocastGuard off(at::kCPU, at::kBFloat16, /*enabled=*/false);
    CHECK(product_type() == at::kFloat);
    {
      const AutocastGuard half(at::kCPU, at::kHalf);
      CHECK(product_type() == at::kHalf);
    }
    CHECK(product_type() == at::kFloat);
  }
  CHECK(product_type() == at::kBFloat16);
}

TEST_CASE("AutocastGuard restores the previous settings, after an exception too") {
  const auto state = [] {
    return std::tuple(at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU),
                      at::autocast::is_autocast_cache_enabled());
  };
  at::autocast::set_autocast_cache_enabled(false);
  const auto before = state();
  try {
    const AutocastGuard amp(at::kCPU, at::kHalf);
    CHECK(state() == std::tuple(true, at::kHalf, true));
    throw 1;
  } catch (int) {
  }
  CHECK(state() == before);
  at::autocast::set_autocast_cache_enabled(true);
}

TEST_CASE("AutocastGuard refuses a dtype that is not 16 bits wide, and changes nothing then") {
  CHECK_THROWS_AS(AutocastGuard(at::kCPU, at::kFloat), c10::TypeError);
  CHECK(product_type() == at::kFloat);
  const AutocastGuard off(at::kCPU, at::kFloat, /*enabled=*/false);
  CHECK(product_type() == at::kFloat);
}

TEST_CASE("AutocastGuard affects only its own thread") {
  const AutocastGuard amp(at::kCPU, at::kBFloat16);
  at::ScalarType there = at::kDouble;
  std::thread([&] { there = product_type(); }).join();
  CHECK(there == at::kFloat);
}

TEST_CASE("AutocastGuard frees the cast weights when the outermost scope ends, not before") {
  const at::Tensor x = torch::ones({2, 4});
  at::Tensor weight = torch::ones({4, 4}).requires_grad_();
  const auto uses_cast_of = [&] {
    // The result shows whether the cast of the weight is stale.
    const at::Tensor y = at::mm(x, weight);
    return y.to(at::kFloat)[0][0].item<float>();
  };
  {
    const AutocastGuard outer(at::kCPU, at::kBFloat16);
    {
      const AutocastGuard inner(at::kCPU, at::kBFloat16);
      CHECK(uses_cast_of() == 4);
    }
    {
      const at::NoGradGuard no_grad;
      weight.fill_(2);
    }
    CHECK(uses_cast_of() == 4);  // the cast is cached until the outermost scope ends
  }
  const AutocastGuard again(at::kCPU, at::kBFloat16);
  CHECK(uses_cast_of() == 8);
}

TEST_CASE("Gradients flow through an AutocastGuard into float32 weights") {
  at::Tensor weight = torch::ones({4, 4}).requires_grad_();
  at::Tensor loss;
  {
    const AutocastGuard amp(at::kCPU, at::kBFloat16);
    loss = at::mm(torch::ones({2, 4}), weight).sum();
  }
  loss.backward();
  CHECK(weight.grad().scalar_type() == at::kFloat);
  CHECK(torch::equal(weight.grad(), torch::full({4, 4}, 2.0)));
}

}  // namespace
}  // namespace trainkit
