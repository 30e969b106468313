#include <ATen/autocast_mode.h>
#include <ATen/ops/convolution.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "nn/convolution/direct_convolution.h"
#include "nn/convolution/winograd.h"
#include "nn/cpu/tile_product.h"
#include "recorded_operations.h"
#include "test_util.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/nn/functional.h"

using namespace trainkit;
using trainkit::test::contains, trainkit::test::operations_of;

namespace {

using Sizes = std::vector<int64_t>;

struct Layer {
  std::string name;
  Sizes input, weight, stride, padding;
};

/// One layer for each algorithm, and the shapes at its borders.
std::vector<Layer> layers() {
  return {
      {"3 x 3, squares of 3", {4, 200, 11, 11}, {64, 200, 3, 3}, {1, 1}, {0, 0}},
      {"3 x 3, squares of 4", {3, 64, 9, 9}, {128, 64, 3, 3}, {1, 1}, {0, 0}},
      {"3 x 3, squares of 2", {5, 48, 4, 4}, {40, 48, 3, 3}, {1, 1}, {0, 0}},
      {"3 x 3, channels beyond a multiple of 8", {3, 103, 9, 9}, {64, 103, 3, 3}, {1, 1}, {0, 0}},
      {"3 x 3, padded", {3, 24, 7, 7}, {24, 24, 3, 3}, {1, 1}, {1, 1}},
      {"3 x 3, padded twice, not square", {2, 64, 5, 12}, {72, 64, 3, 3}, {1, 1}, {2, 1}},
      {"3 x 3, one output", {40, 64, 3, 3}, {64, 64, 3, 3}, {1, 1}, {0, 0}},
      {"3 x 3, several groups of images", {150, 32, 9, 9}, {32, 32, 3, 3}, {1, 1}, {0, 0}},
      {"3 x 3 x 5, stride along bands", {3, 8, 9, 9, 60}, {16, 8, 3, 3, 5}, {1, 1, 2}, {0, 0, 0}},
      {"3 x 3 x 3, stride along bands", {3, 16, 7, 7, 45}, {32, 16, 3, 3, 3}, {1, 1, 2}, {0, 0, 0}},
      {"3 x 3 x 3, stride longer than the kernel", {2, 16, 7, 7, 45}, {32, 16, 3, 3, 3}, {1, 1, 4}, {0, 0, 0}},
      {"3 x 3 x 3, padded along all", {2, 8, 6, 7, 20}, {16, 8, 3, 3, 3}, {1, 1, 1}, {1, 1, 1}},
      {"one channel, 3 x 3 x 7", {3, 1, 11, 11, 60}, {8, 1, 3, 3, 7}, {1, 1, 1}, {0, 0, 0}},
      {"bands only", {4, 24, 5, 5, 41}, {24, 24, 1, 1, 7}, {1, 1, 1}, {0, 0, 3}},
      {"bands only, one channel, stride", {4, 1, 7, 7, 103}, {24, 1, 1, 1, 7}, {1, 1, 2}, {0, 0, 0}},
      {"all bands", {4, 24, 5, 5, 41}, {128, 24, 1, 1, 41}, {1, 1, 1}, {0, 0, 0}},
      {"all bands of 3 x 3", {4, 1, 7, 7, 128}, {24, 1, 3, 3, 128}, {1, 1, 1}, {0, 0, 0}},
      {"5 x 5", {3, 16, 11, 11}, {24, 16, 5, 5}, {1, 1}, {2, 2}},
      {"3 x 2, stride along the second", {3, 16, 20, 21}, {24, 16, 3, 2}, {1, 3}, {1, 1}},
      {"one dimension", {8, 16, 200}, {32, 16, 9}, {2}, {4}},
      {"1 x 1", {4, 64, 8, 8}, {24, 64, 1, 1}, {1, 1}, {0, 0}},
      {"everything", {64, 32, 4, 4}, {40, 32, 4, 4}, {1, 1}, {0, 0}},
  };
}

struct LayerGradients {
  at::Tensor y, input, weight, bias;
};

/// Sum of the outputs with random factors, and its gradients.
template <class F>
LayerGradients layer_gradients(const Layer& layer, at::ScalarType type, bool relu, bool needs_input, const F& f) {
  torch::manual_seed(1);
  const at::Tensor input = torch::randn(layer.input).to(type).requires_grad_(needs_input);
  const at::Tensor weight = (torch::randn(layer.weight) / std::sqrt(torch::ones(layer.weight)[0].numel())).to(type);
  const at::Tensor bias = torch::randn({layer.weight[0]}).to(type);
  weight.requires_grad_();
  bias.requires_grad_();
  const at::Tensor y = f(input, weight, bias, layer.stride, layer.padding, relu);
  (y * torch::randn(y.sizes()).to(type)).sum().backward();
  return {y.detach(), input.grad(), weight.grad(), bias.grad()};
}

at::Tensor exact_convolution(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                             at::IntArrayRef stride, at::IntArrayRef padding, bool relu) {
  const at::Tensor y =
      at::convolution(input, weight, bias, stride, padding, Sizes(stride.size(), 1), false, Sizes(stride.size(), 0), 1);
  return relu ? y.relu() : y;
}

double relative_error(const at::Tensor& a, const at::Tensor& exact) {
  REQUIRE(a.sizes() == exact.sizes());
  return ((a.to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
}

/// Returns whether the kernel covers the input or is 1 x 1: a matrix product, which is LibTorch's.
bool is_product(const Layer& layer) {
  for (const char* name : {"3 x 3, one output", "all bands", "1 x 1", "everything"}) {
    if (layer.name == name) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("convolution and its gradients equal LibTorch's in float64 within rounding", "[nn][convolution]") {
  for (const Layer& layer : layers()) {
    for (const bool relu : {false, true}) {
      for (const bool needs_input : {true, false}) {
        CAPTURE(layer.name, relu, needs_input);
        const LayerGradients exact = layer_gradients(layer, at::kDouble, relu, needs_input, exact_convolution);
        const LayerGradients ours = layer_gradients(layer, at::kFloat, relu, needs_input, convolution);
        // With relu a rounding error decides for some outputs near 0 whether their gradient counts.
        const double most = relu ? 2e-3 : 2e-5;
        CHECK(relative_error(ours.y, exact.y) < 2e-5);
        CHECK(relative_error(ours.weight, exact.weight) < most);
        CHECK(relative_error(ours.bias, exact.bias) < most);
        CHECK(ours.input.defined() == needs_input);
        if (needs_input) CHECK(relative_error(ours.input, exact.input) < most);
        if (relu) CHECK(ours.y.min().item<float>() == 0);
      }
    }
  }
}

TEST_CASE("Each kind of convolution uses the kernels made for it", "[nn][convolution]") {
  if (!trainkit::detail::has_tile_product()) TRAINKIT_SKIP("this processor has no AVX2");
  const auto names_of = [](const Layer& layer, bool needs_input) {
    return operations_of([&] { layer_gradients(layer, at::kFloat, false, needs_input, convolution); });
  };
  for (const Layer& layer : layers()) {
    CAPTURE(layer.name);
    CHECK(contains(names_of(layer, false), is_product(layer) ? "aten::linear" : "trainkit::convolution"));
    CHECK_FALSE(contains(names_of(layer, false), "aten::convolution"));
    const bool can_reach_input = is_product(layer) || layer.input[1] % 8 == 0 || layer.name == "all bands of 3 x 3";
    CHECK(contains(names_of(layer, true), "aten::convolution") == !can_reach_input);
  }
  const auto side = [](int64_t size, int64_t channels, int64_t kernels) {
    return trainkit::detail::winograd_side(
        {.images = 64, .channels = channels, .kernels = kernels, .size = {size, size, 1}, .kernel = {3, 3, 1}});
  };
  CHECK(side(11, 200, 64) == 3);
  CHECK(side(9, 64, 128) == 4);
  CHECK(side(4, 48, 40) == 2);
  CHECK(side(9, 1, 8) == 0);
  CHECK(side(9, 64, 20) == 0);
}

TEST_CASE("A result in channels_last has that format, and its input is not copied", "[nn][convolution]") {
  const at::Tensor x = torch::randn({4, 64, 9, 9}).to(at::MemoryFormat::ChannelsLast);
  const at::Tensor weight = torch::randn({32, 64, 3, 3});
  const auto names = operations_of([&] {
    CHECK(convolution(x, weight, {}, {1, 1}, {0, 0}).is_contiguous(at::MemoryFormat::ChannelsLast));
  });
  CHECK(std::count(names.begin(), names.end(), "aten::clone") <= 1);  // of the weights
}

TEST_CASE("Results of a convolution do not depend on the number of threads", "[nn][convolution]") {
  for (const Layer& layer : layers()) {
    if (is_product(layer)) continue;
    CAPTURE(layer.name);
    const bool needs_input = layer.input[1] % 8 == 0;
    at::set_num_threads(1);
    const LayerGradients one = layer_gradients(layer, at::kFloat, true, needs_input, convolution);
    at::set_num_threads(3);
    const LayerGradients three = layer_gradients(layer, at::kFloat, true, needs_input, convolution);
    at::set_num_threads(2);
    CHECK(at::equal(one.y, three.y));
    CHECK(at::equal(one.weight, three.weight));
    if (needs_input) CHECK(at::equal(one.input, three.input));
  }
}

TEST_CASE("A part of a batch has the bits of the whole", "[nn][convolution]") {
  for (const Layer& layer : layers()) {
    if (is_product(layer)) continue;
    CAPTURE(layer.name);
    torch::manual_seed(1);
    const at::Tensor x = torch::randn(layer.input), weight = torch::randn(layer.weight);
    const at::Tensor whole = convolution(x, weight, {}, layer.stride, layer.padding);
    CHECK(at::equal(convolution(x.slice(0, 0, 1), weight, {}, layer.stride, layer.padding), whole.slice(0, 0, 1)));
  }
}

TEST_CASE("A convolution passes NaN and infinity on", "[nn][convolution]") {
  for (const bool relu : {false, true}) {
    for (const char* name : {"3 x 3, squares of 3", "bands only"}) {
      for (const Layer& layer : layers()) {
        if (layer.name != name) continue;
        CAPTURE(name, relu);
        const at::Tensor x = torch::zeros(layer.input), weight = torch::ones(layer.weight);
        x[1].fill_(std::numeric_limits<float>::quiet_NaN());
        const at::Tensor y = convolution(x, weight, {}, layer.stride, layer.padding, relu);
        CHECK(y[0].isfinite().all().item<bool>());
        CHECK(y[1].isnan().any().item<bool>());
      }
    }
  }
}

TEST_CASE("Other inputs of convolution use LibTorch's operation, with the same bits", "[nn][convolution]") {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({4, 64, 9, 9}), weight = torch::randn({32, 64, 3, 3}), bias = torch::randn({32});
  const auto check = [](const at::Tensor& input, const at::Tensor& w, const at::Tensor& b, Sizes stride) {
    const auto names = operations_of([&] {
      const at::Tensor y = convolution(input, w, b, stride, {0, 0}, true),
                       expected = at::conv2d(input, w, b, stride).relu();
      CHECK(y.scalar_type() == expected.scalar_type());
      CHECK(at::equal(y, expected));
    });
    CHECK_FALSE(contains(names, "trainkit::convolution"));
  };
  check(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble), {1, 1});
  check(x.to(at::kBFloat16), weight.to(at::kBFloat16), bias.to(at::kBFloat16), {1, 1});
  check(x, weight, bias, {2, 2});
  check(x, torch::randn({20, 64, 3, 3}), {}, {1, 1});
  check(x.slice(0, 0, 0), weight, bias, {1, 1});
  {
    const AutocastGuard autocast(at::Device(at::kCPU), at::kBFloat16);
    check(x, weight, bias, {2, 2});
    check(x.to(at::kBFloat16), weight, bias, {2, 2});
    const at::Tensor volumes = torch::randn({2, 3, 6, 6, 6}), line = torch::randn({2, 3, 30});
    CHECK(convolution(volumes, torch::randn({5, 3, 2, 2, 2}), {}, {2, 2, 2}, {0, 0, 0}).scalar_type() == at::kBFloat16);
    CHECK(convolution(line, torch::randn({5, 3, 2}), {}, {2}, {0}).scalar_type() == at::kBFloat16);
  }
  CHECK_THROWS(convolution(x, torch::randn({32, 60, 3, 3}), bias, {1, 1}, {0, 0}));
  CHECK_THROWS(convolution(x, weight, torch::randn({31}), {1, 1}, {0, 0}));
  CHECK_THROWS(convolution(x, torch::randn({32, 64, 11, 11}), bias, {1, 1}, {0, 0}));
}

TEST_CASE("Under autocast to bfloat16 a convolution is computed in float32, without AMX", "[nn][convolution]") {
  if (!trainkit::detail::has_tile_product()) TRAINKIT_SKIP("this processor has no AVX2");
  if (trainkit::detail::has_amx_bfloat16()) TRAINKIT_SKIP("this processor has AMX");
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({4, 64, 9, 9}), weight = torch::randn({32, 64, 3, 3}).requires_grad_();
  const at::Tensor rounded = x.to(at::kBFloat16).requires_grad_(),
                   exact = convolution(rounded.detach().to(at::kFloat), weight, {}, {1, 1}, {0, 0});
  const AutocastGuard autocast(at::Device(at::kCPU), at::kBFloat16);
  const auto names = operations_of([&] {
    const at::Tensor y = convolution(rounded, weight, {}, {1, 1}, {0, 0});
    CHECK(y.scalar_type() == at::kBFloat16);
    CHECK(at::equal(y, exact.to(at::kBFloat16)));
    y.sum().backward();
  });
  CHECK(contains(names, "trainkit::convolution"));
  CHECK(rounded.grad().scalar_type() == at::kBFloat16);
  CHECK(weight.grad().scalar_type() == at::kFloat);
}

TEST_CASE("A convolution has the second derivatives of LibTorch's", "[nn][convolution]") {
  if (!trainkit::detail::has_tile_product()) TRAINKIT_SKIP("this processor has no AVX2");
  torch::manual_seed(1);
  const auto check = [](const Sizes& input, const Sizes& kernel, const Sizes& stride, const Sizes& padding) {
    CAPTURE(input, stride);
    const at::Tensor x = torch::randn(input).requires_grad_(), weight = torch::randn(kernel).requires_grad_(),
                     bias = torch::randn({kernel[0]}).requires_grad_();
    const auto gradients_of_penalty = [&](const at::Tensor& y) {
      const auto first = torch::autograd::grad({y.square().sum()}, {x, weight}, {}, true, /*create_graph=*/true);
      return torch::autograd::grad({first[0].square().sum() + first[1].square().sum()}, {x, weight, bias});
    };
    const auto ours = gradients_of_penalty(convolution(x, weight, bias, stride, padding, /*relu=*/true));
    const auto theirs = gradients_of_penalty(
        at::convolution(x, weight, bias, stride, padding, Sizes(stride.size(), 1), false, Sizes(stride.size(), 0), 1)
            .relu());
    for (size_t k = 0; k < ours.size(); ++k) {
      CHECK((ours[k] - theirs[k]).abs().max().item<float>() < 1e-4 * theirs[k].abs().max().item<float>());
    }
  };
  check({2, 16, 6, 6}, {8, 16, 3, 3}, {1, 1}, {1, 1});
  check({2, 8, 4, 4, 9}, {8, 8, 2, 2, 3}, {1, 1, 2}, {0, 1, 0});
}

TEST_CASE("A padded dimension of size 1 gives the outputs of its padding", "[nn][convolution]") {
  torch::manual_seed(1);
  const auto check = [](const Sizes& input, const Sizes& kernel, const Sizes& stride, const Sizes& padding) {
    CAPTURE(input, stride, padding);
    const at::Tensor x = torch::randn(input), weight = torch::randn(kernel), bias = torch::randn({kernel[0]});
    const at::Tensor expected =
        at::convolution(x, weight, bias, stride, padding, Sizes(stride.size(), 1), false, Sizes(stride.size(), 0), 1);
    const at::Tensor y = convolution(x, weight, bias, stride, padding);
    REQUIRE(y.sizes() == expected.sizes());
    CHECK(torch::allclose(y, expected, 1e-5, 1e-5));
  };
  check({3, 4, 1, 1}, {8, 4, 1, 1}, {1, 1}, {3, 0});
  check({3, 4, 1, 1}, {8, 4, 1, 1}, {2, 3}, {3, 1});
  check({3, 4, 1, 1}, {8, 4, 1, 1}, {2, 3}, {0, 0});
  check({3, 4, 1, 5}, {8, 4, 1, 5}, {1, 1}, {1, 0});
  check({3, 4, 1, 1, 6}, {8, 4, 1, 1, 6}, {1, 1, 1}, {1, 1, 0});
  check({2, 3, 1}, {8, 3, 1}, {1}, {1});
}
