#include "distributed/replica_random.h"

#include <thread>

#include "test_util.h"

using namespace trainkit;

namespace {

/// One draw of every kind that the guard covers.
at::Tensor draws() {
  const at::Tensor p = torch::full({20}, 0.5);
  return torch::cat({torch::rand({4}), torch::randn({4}), torch::randint(1000, {4}).to(at::kFloat),
                     at::dropout(torch::ones({20}), 0.5, true), torch::bernoulli(p), torch::empty({20}).bernoulli_(p),
                     torch::empty({4}).exponential_(), at::multinomial(p, 5, true).to(at::kFloat),
                     torch::empty({4}, at::kLong).random_(77).to(at::kFloat), torch::empty({4}).uniform_(-1, 1)});
}

at::Tensor draws_in_scope(uint64_t seed) {
  const ReplicaRandomGuard guard(seed);
  return draws();
}

}  // namespace

TEST_CASE("Inside the guard all draws depend on its seed only, and the default generator stays unchanged",
          "[distributed][replica_random]") {
  torch::manual_seed(5);
  const at::Tensor expected = draws();
  torch::manual_seed(5);
  const at::Tensor a = draws_in_scope(1), b = draws_in_scope(2);
  CHECK(a.equal(draws_in_scope(1)));
  CHECK(!a.equal(b));
  CHECK(draws().equal(expected));
  torch::manual_seed(1);
  CHECK(a.equal(draws()));  // the same engine with the same seed
}

TEST_CASE("Guards nest, and affect only their own thread", "[distributed][replica_random]") {
  const at::Tensor expected = draws_in_scope(1);
  const ReplicaRandomGuard outer(1);
  CHECK(draws_in_scope(2).equal(draws_in_scope(2)));
  at::Tensor elsewhere;
  std::thread([&] { elsewhere = draws_in_scope(3); }).join();
  CHECK(draws().equal(expected));
  CHECK(elsewhere.equal(draws_in_scope(3)));
}

TEST_CASE("An explicit generator is used, and gradients flow as without the guard", "[distributed][replica_random]") {
  const ReplicaRandomGuard guard(1);
  auto a = at::make_generator<at::CPUGeneratorImpl>(9), b = at::make_generator<at::CPUGeneratorImpl>(9);
  CHECK(torch::empty({5}).uniform_(0, 1, a).equal(torch::empty({5}).uniform_(0, 1, b)));
  const at::Tensor x = torch::ones({50}, torch::requires_grad());
  const at::Tensor y = at::dropout(x, 0.5, true);
  y.sum().backward();
  CHECK(x.grad().equal(y.detach()));
}
