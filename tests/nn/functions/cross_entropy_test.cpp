#include <ATen/autocast_mode.h>

#include "test_util.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/nn/functional.h"

using namespace trainkit;

namespace {

double relative_to_largest(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

/// Loss and gradient of logits with `loss_of`.
template <class F>
std::pair<at::Tensor, at::Tensor> with_gradient(const at::Tensor& logits, F loss_of) {
  const at::Tensor x = logits.detach().clone().requires_grad_();
  const at::Tensor loss = loss_of(x);
  (loss * 3).backward();
  return {loss.detach(), x.grad()};
}

}  // namespace

TEST_CASE("cross_entropy and its gradient equal LibTorch's in float64 within float32 rounding", "[nn][cross_entropy]") {
  torch::manual_seed(3);
  for (const auto& [rows, classes] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 2}, {64, 10}, {7, 17}, {33, 64}, {16, 5000}, {300, 1000}}) {
    for (const double spread : {0.1, 5.0, 60.0}) {
      CAPTURE(rows, classes, spread);
      const at::Tensor logits = torch::randn({rows, classes}) * spread + 20;
      at::Tensor target = torch::randint(classes, {rows});
      if (rows > 4) target[2] = -100;
      const auto [loss, gradient] = with_gradient(logits, [&](const auto& x) { return cross_entropy(x, target); });
      const auto [expected, expected_gradient] =
          with_gradient(logits.to(at::kDouble), [&](const auto& x) { return at::cross_entropy_loss(x, target); });
      CHECK(loss.scalar_type() == at::kFloat);
      CHECK(loss.item<double>() == Approx(expected.item<double>()).epsilon(1e-6).margin(1e-6));
      if (classes > 1) CHECK(relative_to_largest(gradient, expected_gradient) < 2e-6);
    }
  }
}

TEST_CASE("cross_entropy has the same bits for any number of threads, and with and without a gradient",
          "[nn][cross_entropy]") {
  const at::Tensor logits = torch::randn({500, 700});
  const at::Tensor target = torch::randint(700, {500});
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> losses, gradients;
  for (const int count : {1, 2, 7}) {
    at::set_num_threads(count);
    const auto [loss, gradient] = with_gradient(logits, [&](const auto& x) { return cross_entropy(x, target); });
    losses.push_back(loss);
    gradients.push_back(gradient);
    losses.push_back(cross_entropy(logits, target));
  }
  at::set_num_threads(threads);
  for (const auto& loss : losses) CHECK(loss.equal(losses[0]));
  for (const auto& gradient : gradients) CHECK(gradient.equal(gradients[0]));
}

TEST_CASE("cross_entropy treats ignored rows, NaN and infinity as LibTorch does", "[nn][cross_entropy]") {
  const at::Tensor target = torch::tensor({1, 0, -100, 2});
  const auto same = [&](const at::Tensor& logits, const at::Tensor& to, int64_t ignore_index = -100) {
    const auto ours = with_gradient(logits, [&](const auto& x) { return cross_entropy(x, to, ignore_index); });
    const auto theirs = with_gradient(
        logits, [&](const auto& x) { return at::cross_entropy_loss(x, to, {}, at::Reduction::Mean, ignore_index); });
    CHECK(at::allclose(ours.first, theirs.first, 1e-5, 1e-6, /*equal_nan=*/true));
    CHECK(at::allclose(ours.second, theirs.second, 1e-5, 1e-6, /*equal_nan=*/true));
  };
  const at::Tensor logits = torch::randn({4, 3});
  same(logits, target);
  same(logits, torch::tensor({1, 0, 7, 2}), 7);
  same(logits, torch::full({4}, -100, at::kLong));  // NaN: no row counts
  for (const double odd : {double(NAN), double(INFINITY), double(-INFINITY)}) {
    at::Tensor other = logits.clone();
    other[1][2] = odd;
    same(other, target);
    other[1][0] = odd;  // the target's own logit
    same(other, target);
  }
  // Very different logits: the exponentials of the others underflow.
  same(torch::tensor({{0.f, 1000.f}, {1000.f, 0.f}}), torch::tensor({0, 0}));
}

TEST_CASE("cross_entropy accepts inputs that its fast path does not support", "[nn][cross_entropy]") {
  const at::Tensor target = torch::randint(6, {4});
  for (const at::Tensor& logits :
       {torch::randn({4, 6}, at::kDouble), torch::randn({4, 6}).to(at::kBFloat16), torch::randn({6, 4}).t()}) {
    CHECK(at::allclose(cross_entropy(logits, target), at::cross_entropy_loss(logits, target)));
  }
  CHECK(cross_entropy(torch::randn({0, 6}), torch::zeros({0}, at::kLong)).isnan().item<bool>());
  CHECK_THROWS(cross_entropy(torch::randn({4, 6}), torch::zeros({3}, at::kLong)));
}

TEST_CASE("cross_entropy reports a target out of range", "[nn][cross_entropy]") {
  CHECK_THROWS_WITH(cross_entropy(torch::randn({2, 3}), torch::tensor({0, 3})),
                    Catch::Contains("target 3 of row 1 is out of range for 3 classes"));
  CHECK_THROWS_AS(cross_entropy(torch::randn({2, 3}), torch::tensor({-1, 0})), c10::IndexError);
}

TEST_CASE("cross_entropy runs backward twice only with a retained graph, and has no second derivative",
          "[nn][cross_entropy]") {
  const at::Tensor target = torch::tensor({1, 0});
  const at::Tensor x = torch::randn({2, 3}).requires_grad_();
  at::Tensor loss = cross_entropy(x, target);
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = x.grad().clone();
  loss.backward();
  CHECK(at::allclose(x.grad(), 2 * once));
  CHECK_THROWS(loss.backward());
  loss = cross_entropy(x, target);
  CHECK_THROWS_WITH(loss.backward({}, true, /*create_graph=*/true), Catch::Contains("no second derivative"));
}

TEST_CASE("Under autocast cross_entropy of bfloat16 logits equals that of the same values in float32",
          "[nn][cross_entropy]") {
  const at::Tensor target = torch::randint(6, {4}), logits = torch::randn({4, 6}).to(at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto [loss, gradient] = with_gradient(logits, [&](const auto& x) { return cross_entropy(x, target); });
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK(loss.equal(cross_entropy(logits.to(at::kFloat), target)));
  CHECK(gradient.scalar_type() == at::kBFloat16);
}

TEST_CASE("Class weights and label smoothing give PyTorch's formula and its gradient", "[nn][cross_entropy]") {
  torch::manual_seed(5);
  const int64_t rows = 30, classes = 7;
  const at::Tensor logits = torch::randn({rows, classes}) * 3;
  at::Tensor target = torch::randint(classes, {rows});
  target[4] = -100;
  const at::Tensor weight = torch::rand({classes}) + 0.1;
  for (const bool weighted : {false, true}) {
    for (const double smoothing : {0.0, 0.1, 1.0}) {
      CAPTURE(weighted, smoothing);
      const at::Tensor used = weighted ? weight : at::Tensor();
      const auto [loss, gradient] =
          with_gradient(logits, [&](const auto& x) { return cross_entropy(x, target, -100, used, smoothing); });
      // torch.nn.CrossEntropyLoss: the target mixed with the uniform distribution, the mean weighted by the target.
      const auto [expected, expected_gradient] = with_gradient(logits.to(at::kDouble), [&](const auto& x) {
        const at::Tensor w = weighted ? weight.to(at::kDouble) : torch::ones({classes}, at::kDouble);
        const at::Tensor counted = target.ne(-100), y = target.clamp_min(0);
        const at::Tensor wanted =
            (1 - smoothing) * torch::one_hot(y, classes).to(at::kDouble) + smoothing / static_cast<double>(classes);
        const at::Tensor each = -(wanted * w * x.log_softmax(1)).sum(1);
        return each.masked_select(counted).sum() / w.index_select(0, y).masked_select(counted).sum();
      });
      CHECK(loss.item<double>() == Approx(expected.template item<double>()).epsilon(1e-5));
      CHECK(relative_to_largest(gradient, expected_gradient) < 1e-5);
    }
  }
  CHECK_THROWS_AS(cross_entropy(logits, target, -100, {}, 1.5), c10::ValueError);
  CHECK_THROWS_AS(cross_entropy(logits, target, -100, torch::ones({3})), c10::Error);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor narrow = cross_entropy(logits.to(at::kBFloat16), target, -100, weight, 0.1);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK(narrow.equal(cross_entropy(logits.to(at::kBFloat16).to(at::kFloat), target, -100, weight, 0.1)));
}

TEST_CASE("Under autocast class weights of 16-bit logits stay float32", "[nn][cross_entropy]") {
  torch::manual_seed(6);
  const at::Tensor weight = torch::tensor({7e4f, 1e-8f, 0.1f, 1.0f}), target = torch::randint(4, {64});
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    CAPTURE(type);
    const at::Tensor logits = torch::randn({64, 4}).to(type);
    const AutocastGuard autocast(at::Device(at::kCPU), type);
    const at::Tensor loss = cross_entropy(logits, target, -100, weight);
    CHECK(loss.scalar_type() == at::kFloat);
    CHECK(loss.equal(at::cross_entropy_loss(logits.to(at::kFloat), target, weight)));
  }
}

TEST_CASE("cross_entropy takes probabilities of the classes as targets, as PyTorch", "[nn][cross_entropy]") {
  torch::manual_seed(7);
  const int64_t rows = 20, classes = 5;
  const at::Tensor logits = torch::randn({rows, classes}) * 3, mix = torch::randn({rows, classes}).softmax(1);
  const at::Tensor weight = torch::rand({classes}) + 0.1;
  for (const bool weighted : {false, true}) {
    for (const double smoothing : {0.0, 0.1, 1.0}) {
      CAPTURE(weighted, smoothing);
      const at::Tensor used = weighted ? weight : at::Tensor();
      const auto [loss, gradient] =
          with_gradient(logits, [&](const auto& x) { return cross_entropy(x, mix, -100, used, smoothing); });
      // torch.nn.CrossEntropyLoss with probabilities: divided by the rows, also with weights.
      const auto [expected, expected_gradient] = with_gradient(logits.to(at::kDouble), [&](const auto& x) {
        const at::Tensor w = weighted ? weight.to(at::kDouble) : torch::ones({classes}, at::kDouble);
        const at::Tensor wanted = (1 - smoothing) * mix.to(at::kDouble) + smoothing / static_cast<double>(classes);
        return -(wanted * w * x.log_softmax(1)).sum() / static_cast<double>(rows);
      });
      CHECK(loss.item<double>() == Approx(expected.template item<double>()).epsilon(1e-5));
      CHECK(relative_to_largest(gradient, expected_gradient) < 1e-5);
    }
  }
  // torch.nn.functional.cross_entropy(tensor([[1., 2., -1.], [0.5, 0., 3.]]), tensor([[0.2, 0.7, 0.1],
  // [0., 0.25, 0.75]]), weight=tensor([1., 2., 0.5]), label_smoothing=0.1) of PyTorch 2.11, and its gradient.
  const at::Tensor x = torch::tensor({1.0F, 2.0F, -1.0F, 0.5F, 0.0F, 3.0F}).view({2, 3}).requires_grad_();
  const at::Tensor target = torch::tensor({0.2F, 0.7F, 0.1F, 0.0F, 0.25F, 0.75F}).view({2, 3});
  const at::Tensor loss = cross_entropy(x, target, -100, torch::tensor({1.0F, 2.0F, 0.5F}), 0.1);
  CHECK(loss.item<double>() == Approx(1.351334850191341).epsilon(1e-6));
  loss.backward();
  const at::Tensor gradient =
      torch::tensor({0.101146749F, -0.098437903F, -0.002708846F, 0.016119070F, -0.238447779F, 0.222328708F})
          .view({2, 3});
  CHECK(at::allclose(x.grad(), gradient, 1e-5, 1e-7));
  // Hard targets as probabilities, and autocast.
  const at::Tensor y = torch::randint(classes, {rows}), hard = torch::one_hot(y, classes).to(at::kFloat);
  CHECK(cross_entropy(logits, hard).item<double>() == Approx(cross_entropy(logits, y).item<double>()).epsilon(1e-6));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor narrow = cross_entropy(logits.to(at::kBFloat16), mix, -100, weight);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK(narrow.equal(at::cross_entropy_loss(logits.to(at::kBFloat16).to(at::kFloat), mix, weight)));
  CHECK_THROWS_AS(cross_entropy(logits, mix.slice(1, 0, 3)), c10::Error);
}

TEST_CASE("Losses with a second derivative are named where one is missing", "[nn][cross_entropy]") {
  const at::Tensor x = torch::randn({4, 6}).requires_grad_(), y = torch::randint(6, {4});
  const auto first = [&](const at::Tensor& loss) {
    return torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  };
  CHECK_THROWS_WITH(first(cross_entropy(x, y)), Catch::Contains("use at::cross_entropy_loss"));
  CHECK_THROWS_WITH(first(linear_cross_entropy(x, torch::randn({5000, 6}), y)),
                    Catch::Contains("use at::cross_entropy_loss of at::linear"));
  // With weights, smoothing or probabilities it has one.
  for (const at::Tensor& loss : {cross_entropy(x, y, -100, {}, 0.1), cross_entropy(x, y, -100, torch::ones({6})),
                                 cross_entropy(x, torch::rand({4, 6}))}) {
    first(loss).square().sum().backward();
    CHECK(x.grad().abs().sum().item<double>() > 0);
    x.mutable_grad().reset();
  }
}
