#include "distributed/replicas/replica_random.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
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

// The first of this file. Hidden, since tests of other files may come before it in one process.
TEST_CASE("The key has no kernels before the first guard", "[.][unregistered]") {
  const auto op = c10::Dispatcher::singleton().findSchema({"aten::bernoulli", ""});
  REQUIRE(op);
  CHECK(!op->hasKernelForDispatchKey(c10::DispatchKey::TESTING_ONLY_GenericMode));
  draws_in_scope(1);
  CHECK(op->hasKernelForDispatchKey(c10::DispatchKey::TESTING_ONLY_GenericMode));
}

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

namespace {

/// One draw of each further kind of operator with a generator, by name.
std::vector<std::pair<std::string, at::Tensor>> other_draws() {
  const at::Tensor half = torch::full({20}, 0.5), tens = torch::full({20}, 10.0);
  const auto empty = [] { return torch::empty({20}); };
  at::Tensor noise = empty();
  return {{"poisson", at::poisson(tens)},
          {"binomial", at::binomial(tens, half)},
          {"geometric_", empty().geometric_(0.3)},
          {"log_normal_", empty().log_normal_()},
          {"cauchy_", empty().cauchy_()},
          {"_standard_gamma", at::_standard_gamma(tens)},
          {"_sample_dirichlet", at::_sample_dirichlet(tens)},
          {"normal of tensors", at::normal(half, tens)},
          {"normal of a mean and tensors", at::normal(0.5, tens)},
          {"normal of tensors and a deviation", at::normal(half, 2.0)},
          {"rrelu", at::rrelu(-half, 0.1, 0.9, /*training=*/true)},
          {"rrelu_with_noise", at::rrelu_with_noise(-half, noise, 0.1, 0.9, /*training=*/true)},
          {"randperm", at::randperm(20)},
          {"rand_like", at::rand_like(half)},
          {"randint_like", at::randint_like(half, 1000)},
          {"native_dropout", std::get<1>(at::native_dropout(half, 0.5, true))},
          {"alpha_dropout", at::alpha_dropout(half, 0.5, true)},
          {"feature_dropout", at::feature_dropout(torch::ones({4, 30, 2}), 0.5, true)},
          {"multinomial without replacement", at::multinomial(half, 5)}};
}

}  // namespace

TEST_CASE("Every operator of LibTorch with a generator draws from the guard's", "[distributed][replica_random]") {
  int found = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !name.name.starts_with("aten::")) continue;
    const auto& arguments = op->schema().arguments();
    const bool draws = std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
      return argument.type()->repr_str().find("Generator") != std::string::npos;
    });
    if (!draws) continue;
    INFO(c10::toString(name));
    CHECK(op->hasKernelForDispatchKey(c10::DispatchKey::TESTING_ONLY_GenericMode));
    ++found;
  }
  CHECK(found >= 52);
}

TEST_CASE("Distributions, permutations and dropout of every kind depend on the guard's seed only",
          "[distributed][replica_random]") {
  const auto in_scope = [](uint64_t seed) {
    const ReplicaRandomGuard guard(seed);
    return other_draws();
  };
  torch::manual_seed(5);
  const at::Tensor next = torch::rand({4});
  torch::manual_seed(5);
  const auto a = in_scope(1), again = in_scope(1), b = in_scope(2);
  CHECK(torch::rand({4}).equal(next));  // nothing has drawn from the default generator
  torch::manual_seed(1);
  const auto plain = other_draws();
  for (size_t i = 0; i < a.size(); ++i) {
    INFO(a[i].first);
    CHECK(a[i].second.equal(again[i].second));
    CHECK(!a[i].second.equal(b[i].second));
    CHECK(a[i].second.equal(plain[i].second));  // the same engine with the same seed
  }
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

TEST_CASE("A program without replicas has LibTorch's operators as they are", "[distributed][replica_random]") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  CHECK(std::system(("'" + self + "' '[unregistered]' > /dev/null").c_str()) == 0);
}
