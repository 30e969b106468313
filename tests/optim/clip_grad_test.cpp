#include <limits>

#include "core/tensors/tensor_lists.h"
#include "test_util.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/optim/sgd.h"

namespace trainkit {
namespace {

using Catch::Contains;

struct Problem {
  Problem() {
    optimizer.add_param_group({.params = {{"a", a}, {"b", b}}});
    a.mutable_grad() = torch::full({2}, 3.0f);
    b.mutable_grad() = torch::full({2, 2}, -2.0f);
  }
  double norm() const { return std::sqrt(a.grad().pow(2).sum().item<double>() + b.grad().pow(2).sum().item<double>()); }
  at::Tensor a = torch::zeros({2}).requires_grad_();
  at::Tensor b = torch::zeros({2, 2}).requires_grad_();
  SGD optimizer;
};

TEST_CASE("clip_grad_norm_ returns the norm of all gradients together and reduces it to max_norm") {
  Problem p;
  const double before = std::sqrt(2 * 9 + 4 * 4);
  CHECK(clip_grad_norm_(p.optimizer, 1.5).item<double>() == Approx(before));
  CHECK(p.norm() == Approx(1.5));
  CHECK(p.a.grad()[0].item<double>() / p.b.grad()[0][0].item<double>() == Approx(-1.5));
}

TEST_CASE("clip_grad_norm_ leaves gradients below max_norm unchanged bit for bit") {
  Problem p;
  clip_grad_norm_(p.optimizer, 100.0);
  CHECK(torch::equal(p.a.grad(), torch::full({2}, 3.0f)));
}

TEST_CASE("clip_grad_norm_ only measures if max_norm is infinite or not positive") {
  for (const double max_norm : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
    Problem p;
    p.a.mutable_grad() = torch::full({2}, std::numeric_limits<float>::infinity());
    CHECK(std::isinf(clip_grad_norm_(p.optimizer, max_norm).item<double>()));
    CHECK(torch::equal(p.b.grad(), torch::full({2, 2}, -2.0f)));
  }
}

TEST_CASE("clip_grad_norm_ of a large tensor is exact where LibTorch's sum in float32 is not") {
  // 2^26 ones in float32 would do too; the squares of 1.3 are rounded in the sum from fewer elements on.
  const int64_t size = (int64_t{1} << 25) + 3;
  const at::Tensor weight = torch::zeros({size}).requires_grad_();
  SGD optimizer;
  optimizer.add_param_group({.params = {{"weight", weight}}});
  weight.mutable_grad() = torch::full({size}, 1.3f);
  const double exact = 1.3f * std::sqrt(static_cast<double>(size));
  CHECK(clip_grad_norm_(optimizer, 0).item<double>() == Approx(exact).epsilon(0.01));
}

TEST_CASE("Norms from pieces are those of the whole, for every layout and dtype") {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({6, 10, 7});
  const std::vector<at::Tensor> all = {x,
                                       x.transpose(0, 2),
                                       x.slice(1, 0, 10, 3),
                                       x.to(at::kDouble),
                                       x.to(at::kBFloat16),
                                       torch::randn({5}),
                                       torch::randn({})};
  const std::vector<at::Tensor> whole = detail::norms_of(all), pieces = detail::norms_of(all, 8);
  REQUIRE(pieces.size() == all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    INFO(i);
    CHECK(pieces[i].scalar_type() == all[i].scalar_type());
    CHECK(whole[i].equal(at::linalg_vector_norm(all[i], 2)));
    const double tolerance = all[i].scalar_type() == at::kBFloat16 ? 0.01 : 1e-5;
    CHECK(pieces[i].item<double>() == Approx(all[i].to(at::kDouble).norm().item<double>()).epsilon(tolerance));
  }
  CHECK(pieces[5].equal(whole[5]));  // not divided
}

TEST_CASE("A sparse gradient is refused with its parameter and the remedy, with and without clipping") {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  SGD optimizer;
  optimizer.add_param_group({.params = {{"table", table->weight}}});
  table(torch::tensor({1, 3})).sum().backward();
  const auto expected = Contains(
      "the gradient of 'table' is sparse, expected a dense one: build the embedding with "
      "sparse(false)");
  CHECK_THROWS_WITH(clip_grad_norm_(optimizer, 1.0), expected);
  CHECK_THROWS_WITH(optimizer.step(), expected);
}

TEST_CASE("clip_grad_norm_ of an optimizer without parameters is 0") {
  SGD optimizer;
  CHECK(clip_grad_norm_(optimizer, 1.0).item<double>() == 0);
}

TEST_CASE("clip_grad_norm_ of no gradients is 0, and parameters without a gradient are skipped") {
  Problem p;
  p.a.mutable_grad().reset();
  CHECK(clip_grad_norm_(p.optimizer, 1.0).item<double>() == 4);
  p.b.mutable_grad().reset();
  CHECK(clip_grad_norm_(p.optimizer, 1.0).item<double>() == 0);
}

}  // namespace
}  // namespace trainkit
