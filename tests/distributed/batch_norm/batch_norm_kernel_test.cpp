// Batch normalisation in training mode on the CPU, compared with LibTorch's own in float64.
#include "test_util.h"
#include "trainkit/distributed/sync_batch_norm.h"

using namespace trainkit;

namespace {

at::MemoryFormat channels_last(int64_t dims) {
  return dims == 4   ? at::MemoryFormat::ChannelsLast
         : dims == 5 ? at::MemoryFormat::ChannelsLast3d
                     : at::MemoryFormat::Contiguous;
}

struct Given {
  at::Tensor x, residual, dy;
};

Given given(const std::vector<int64_t>& shape, at::ScalarType type, bool residual) {
  const auto make = [&](double mean) {
    return (torch::randn(shape) * 2 + mean).to(type).contiguous(channels_last(static_cast<int64_t>(shape.size())));
  };
  return {make(1), residual ? make(0) : at::Tensor(), make(0)};
}

/// y, dx, the gradients of residual, weight and bias, running mean and variance; the reference also has the input of
/// relu.
using KernelOutcome = std::vector<at::Tensor>;

KernelOutcome ours(const Given& given, bool relu) {
  SyncBatchNorm norm(given.x.size(1));
  const int64_t channels = given.x.size(1);
  {
    const torch::NoGradGuard no_grad;
    norm->weight.copy_(torch::linspace(0.5, 2, channels));
    norm->bias.copy_(torch::linspace(-1, 1, channels));
  }
  const at::Tensor x = given.x.detach().requires_grad_();
  const at::Tensor residual = given.residual.defined() ? given.residual.detach().requires_grad_() : at::Tensor();
  const at::Tensor y = relu ? norm->forward_relu(x, residual) : norm->forward(x);
  y.backward(given.dy);
  return {y.detach(),          x.grad(),          residual.defined() ? residual.grad() : at::zeros({1}),
          norm->weight.grad(), norm->bias.grad(), norm->running_mean,
          norm->running_var};
}

KernelOutcome reference(const Given& given, bool relu) {
  const int64_t channels = given.x.size(1);
  const at::Tensor weight = torch::linspace(0.5, 2, channels).to(at::kDouble).requires_grad_();
  const at::Tensor bias = torch::linspace(-1, 1, channels).to(at::kDouble).requires_grad_();
  const at::Tensor mean = torch::zeros({channels}, at::kDouble), var = torch::ones({channels}, at::kDouble);
  const at::Tensor x = given.x.detach().to(at::kDouble).requires_grad_();
  const at::Tensor residual =
      given.residual.defined() ? given.residual.detach().to(at::kDouble).requires_grad_() : at::Tensor();
  at::Tensor sum = at::batch_norm(x, weight, bias, mean, var, true, 0.1, 1e-5, false);
  if (residual.defined()) sum = sum + residual;
  const at::Tensor y = relu ? sum.relu() : sum;
  y.backward(given.dy.to(at::kDouble));
  return {y.detach(),    x.grad(),    residual.defined() ? residual.grad() : at::zeros({1}),
          weight.grad(), bias.grad(), mean,
          var,           sum.detach()};
}

/// Where rounding decides whether a value is above zero, the gradient may be complete or zero: these values are
/// skipped.
void check_close(const KernelOutcome& is, const KernelOutcome& wanted, bool relu, double tolerance) {
  const at::Tensor decided = relu ? wanted[7].abs() > 4 * tolerance : at::ones({1}, at::kBool);
  const double rows = static_cast<double>(is[0].numel() / is[0].size(1));
  for (size_t k = 0; k < is.size(); ++k) {
    INFO("tensor " << k);
    at::Tensor difference = (is[k].to(at::kDouble) - wanted[k]).abs();
    if ((k == 1 || k == 2) && difference.numel() > 1) difference = difference * decided;
    // the gradients of weight and bias are sums over rows with values of either sign
    const double scale = wanted[k].abs().max().item<double>() + (k == 3 || k == 4 ? std::sqrt(rows) : 1);
    CHECK(difference.max().item<double>() <= tolerance * scale);
  }
}

}  // namespace

TEST_CASE("Batch normalisation with relu and residual in one pass equals LibTorch's three operations",
          "[distributed][batch_norm]") {
  torch::manual_seed(5);
  // Whole blocks of 64 channels, blocks of 16, and the remainder of one.
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {70, 64}, {9, 5}, {3, 64, 14, 13}, {2, 147, 5, 6}, {2, 20, 3, 3, 4}, {1, 3, 200, 200}}) {
    for (const bool residual : {false, true}) {
      for (const bool relu : {false, true}) {
        if (residual && !relu) continue;
        INFO("shape " << shape << ", residual " << residual << ", relu " << relu);
        const Given in_float = given(shape, at::kFloat, residual);
        check_close(ours(in_float, relu), reference(in_float, relu), relu, 2e-6);
        const Given in_bfloat16 = given(shape, at::kBFloat16, residual);
        const KernelOutcome of_bfloat16 = ours(in_bfloat16, relu);
        CHECK(of_bfloat16[0].scalar_type() == at::kBFloat16);
        CHECK(of_bfloat16[3].scalar_type() == at::kFloat);
        check_close(of_bfloat16, reference(in_bfloat16, relu), relu, 8e-3);
      }
    }
  }
}

TEST_CASE("Batch normalisation gives the same bits with one thread and with two", "[distributed][batch_norm]") {
  torch::manual_seed(6);
  const Given in = given({4, 96, 33, 35}, at::kFloat, true);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const KernelOutcome one = ours(in, true);
  at::set_num_threads(2);
  const KernelOutcome two = ours(in, true);
  at::set_num_threads(threads);
  for (size_t k = 0; k < one.size(); ++k) CHECK(one[k].equal(two[k]));
}

TEST_CASE("Channels far from zero keep the precision of their variance", "[distributed][batch_norm]") {
  torch::manual_seed(7);
  Given in = given({4, 64, 40, 40}, at::kFloat, false);
  in.x.add_(5000);
  in.x.select(0, 0).select(1, 0).select(1, 0).fill_(-5000);  // the first position has a very different value
  const KernelOutcome is = ours(in, false), wanted = reference(in, false);
  CHECK((is[6].to(at::kDouble) / wanted[6] - 1).abs().max().item<double>() < 1e-4);
}

TEST_CASE("A NaN propagates through batch normalisation with relu", "[distributed][batch_norm]") {
  Given in = given({8, 32, 4, 4}, at::kFloat, false);
  in.x.select(1, 3).fill_(std::numeric_limits<float>::quiet_NaN());
  const at::Tensor y = ours(in, true)[0];
  CHECK(y.select(1, 3).isnan().all().item<bool>());
  CHECK_FALSE(y.select(1, 4).isnan().any().item<bool>());
}

TEST_CASE("Fused batch normalisation has the second derivatives of LibTorch's", "[distributed][batch_norm]") {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({8, 4}).requires_grad_(), residual = torch::randn({8, 4}).requires_grad_(),
                   weights = torch::randn({8, 4});
  SyncBatchNorm norm(4);
  const auto gradients_of_penalty = [&](const at::Tensor& y) {
    const auto first = torch::autograd::grad({(y.square() * weights).sum()}, {x, residual}, {}, true, true);
    return torch::autograd::grad({first[0].square().sum() + first[1].square().sum()}, {x, residual, norm->weight});
  };
  const auto ours = gradients_of_penalty(norm->forward_relu(x, residual));
  const auto theirs = gradients_of_penalty(
      (at::batch_norm(x, norm->weight, norm->bias, {}, {}, true, 0.1, 1e-5, false) + residual).relu());
  for (size_t k = 0; k < ours.size(); ++k) CHECK(torch::allclose(ours[k], theirs[k], 1e-4, 1e-5));
}
