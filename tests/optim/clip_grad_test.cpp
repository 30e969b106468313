#include <limits>

#include "test_util.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/optim/sgd.h"

namespace trainkit {
namespace {

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
