#include "core/tensors/skipped_products.h"

#include <torch/torch.h>

#include <thread>

#include "test_util.h"

using namespace trainkit;

namespace {

/// Returns the output of `model` and the gradients of its parameters and of x.
template <typename Model>
std::vector<at::Tensor> outputs_and_gradients(Model& model, const at::Tensor& input) {
  const at::Tensor x = input.clone().requires_grad_();
  std::vector<at::Tensor> inputs = {x};
  for (const at::Tensor& parameter : model->parameters()) inputs.push_back(parameter);
  const at::Tensor out = model->forward(x);
  std::vector<at::Tensor> all = torch::autograd::grad({out.sum()}, inputs);
  all.push_back(out.detach());
  return all;
}

/// Checks that results have the sizes, strides and dtypes of computed ones, and that all of them are zeros.
template <typename Model>
void check_skipped(Model model, const at::Tensor& input, size_t biases) {
  const auto expected = outputs_and_gradients(model, input);
  std::vector<at::Tensor> skipped;
  {
    const trainkit::detail::SkippedProducts skips(true);
    skipped = outputs_and_gradients(model, input);
  }
  REQUIRE(skipped.size() == expected.size());
  size_t other_than_zeros = 0;
  for (size_t k = 0; k < expected.size(); ++k) {
    CAPTURE(k, expected[k].sizes());
    CHECK(skipped[k].sizes() == expected[k].sizes());
    CHECK(skipped[k].strides() == expected[k].strides());
    CHECK(skipped[k].scalar_type() == expected[k].scalar_type());
    if (!skipped[k].eq(0).all().item<bool>()) ++other_than_zeros;
  }
  CHECK(other_than_zeros <= biases);  // sums of gradients of ones
  const auto again = outputs_and_gradients(model, input);
  for (size_t k = 0; k < expected.size(); ++k) CHECK(again[k].equal(expected[k]));
}

}  // namespace

TEST_CASE("Skipped products and their gradients have the shape of computed ones", "[core][skipped_products]") {
  check_skipped(torch::nn::Linear(7, 5), torch::randn({6, 7}), 1);
  check_skipped(torch::nn::Linear(torch::nn::LinearOptions(7, 5).bias(false)), torch::randn({2, 3, 7}), 0);
  const at::Tensor other = torch::randn({3, 4, 5});
  const trainkit::detail::SkippedProducts skips(true);
  CHECK(at::bmm(torch::randn({3, 2, 4}), other).equal(torch::zeros({3, 2, 5})));
  CHECK(at::baddbmm(torch::randn({3, 2, 5}), torch::randn({3, 2, 4}), other).equal(torch::zeros({3, 2, 5})));
}

TEST_CASE("Skipped convolutions and their gradients have the shape of computed ones", "[core][skipped_products]") {
  using torch::nn::Conv1dOptions, torch::nn::Conv2dOptions, torch::nn::Conv3dOptions;
  check_skipped(torch::nn::Conv1d(Conv1dOptions(3, 4, 3).padding(1)), torch::randn({2, 3, 9}), 1);
  check_skipped(torch::nn::Conv2d(Conv2dOptions(3, 4, 3).stride(2).padding(1)), torch::randn({2, 3, 9, 8}), 1);
  check_skipped(torch::nn::Conv2d(Conv2dOptions(4, 4, {3, 1}).dilation({2, 1}).groups(2)), torch::randn({2, 4, 9, 8}),
                1);
  check_skipped(torch::nn::Conv3d(Conv3dOptions(1, 4, {5, 3, 3}).bias(false)), torch::randn({2, 1, 9, 8, 7}), 0);
  const at::Tensor input = torch::randn({2, 3, 9, 8});
  const trainkit::detail::SkippedProducts skips(true);
  // One number for all dimensions, as in at::convolution and at::conv2d.
  CHECK(at::conv2d(input, torch::randn({4, 3, 3, 3}), {}, 2, 1, 1).sizes() == at::IntArrayRef({2, 4, 5, 4}));
}

TEST_CASE("Skipped attention and its gradients have the shape of computed ones", "[core][skipped_products]") {
  const auto make_heads = [] { return torch::randn({2, 3, 9, 8}).requires_grad_(); };
  const at::Tensor query = make_heads(), key = make_heads(), value = make_heads();
  const auto run = [&] {
    const at::Tensor out = at::scaled_dot_product_attention(query, key, value, {}, 0.0, /*is_causal=*/true);
    std::vector<at::Tensor> all = torch::autograd::grad({out.sum()}, {query, key, value});
    all.push_back(out.detach());
    return all;
  };
  const auto expected = run();
  const trainkit::detail::SkippedProducts skips(true);
  const auto skipped = run();
  for (size_t k = 0; k < expected.size(); ++k) {
    CAPTURE(k);
    CHECK(skipped[k].sizes() == expected[k].sizes());
    CHECK(skipped[k].strides() == expected[k].strides());
    CHECK(skipped[k].eq(0).all().item<bool>());
  }
}

TEST_CASE("Products are skipped in the thread of the object and while it lives", "[core][skipped_products]") {
  const at::Tensor a = torch::ones({2, 2});
  {
    const trainkit::detail::SkippedProducts skips(true), nothing(false);
    CHECK(trainkit::detail::SkippedProducts::active());
    CHECK(at::mm(a, a).equal(torch::zeros({2, 2})));
    std::thread([&] { CHECK(at::mm(a, a).equal(torch::full({2, 2}, 2))); }).join();
    { const trainkit::detail::SkippedProducts again(true); }
    CHECK(trainkit::detail::SkippedProducts::active());
  }
  CHECK(!trainkit::detail::SkippedProducts::active());
  CHECK(at::mm(a, a).equal(torch::full({2, 2}, 2)));
}
