#include "trainkit/distributed/sync_batch_norm.h"

#include <ATen/record_function.h>

#include <atomic>

#include "test_util.h"
#include "trainkit/distributed/device_replicator.h"

using namespace trainkit;

namespace {

/// Forward, backward and statistics of `replicas` with their shares of x; the loss weights each output differently.
struct NormOutcome {
  at::Tensor y, dx, weight_grad, bias_grad, mean, var;
};

NormOutcome on_replicas(int64_t replicas, const at::Tensor& x, const at::Tensor& weights) {
  const auto devices = DeviceReplicator::create(
                           [&] {
                             auto norm = std::make_shared<SyncBatchNormImpl>(x.size(1));
                             norm->to(x.scalar_type());
                             const torch::NoGradGuard no_grad;
                             norm->weight.copy_(torch::linspace(0.5, 2, x.size(1)));
                             norm->bias.copy_(torch::linspace(-1, 1, x.size(1)));
                             return norm;
                           },
                           {.cpu_replicas = replicas})
                           .value();
  std::vector<at::Tensor> y(static_cast<size_t>(replicas)), inputs(y.size());
  const auto shards = x.chunk(replicas), weight_shards = weights.chunk(replicas);
  devices->run([&](int64_t replica) {
    const auto i = static_cast<size_t>(replica);
    inputs[i] = shards[i].detach().clone().set_requires_grad(true);
    y[i] = devices->module(replica)->as<SyncBatchNorm>()->forward(inputs[i]);
    return (y[i] * weight_shards[i]).sum();
  });
  auto* norm = devices->module()->as<SyncBatchNorm>();
  auto* last = devices->module(replicas - 1)->as<SyncBatchNorm>();
  CHECK(norm->running_mean.equal(last->running_mean));
  CHECK(norm->running_var.equal(last->running_var));
  CHECK(norm->num_batches_tracked.item<int64_t>() == 1);
  std::vector<at::Tensor> dx;
  for (const at::Tensor& input : inputs) dx.push_back(input.grad());
  return {torch::cat(y).detach(), torch::cat(dx),     norm->weight.grad(),
          norm->bias.grad(),      norm->running_mean, norm->running_var};
}

}  // namespace

TEST_CASE("Synchronised batch normalisation equals that of the whole batch, forward and backward",
          "[distributed][sync_batch_norm]") {
  torch::manual_seed(3);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{12, 5}, {12, 5, 7}, {12, 3, 4, 6}}) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = torch::randn(shape, type) * 3 + 10, weights = torch::randn(shape, type);
      const NormOutcome whole = on_replicas(1, x, weights);
      const at::Tensor reference =
          at::batch_norm(x, torch::linspace(0.5, 2, shape[1]).to(type), torch::linspace(-1, 1, shape[1]).to(type), {},
                         {}, true, 0.1, 1e-5, false);
      // scale x and offset, numbers near 8 that nearly cancel, round separately without a fused multiply-add
      const double rounding = type == at::kFloat ? 4e-6 : 1e-12;
      CHECK(whole.y.allclose(reference, rounding, rounding));
      for (const int64_t replicas : {2, 3}) {
        const NormOutcome parts = on_replicas(replicas, x, weights);
        const double tolerance = type == at::kFloat ? 2e-5 : 1e-10;
        CHECK(parts.y.allclose(whole.y, tolerance, tolerance));
        CHECK(parts.dx.allclose(whole.dx, tolerance, tolerance));
        CHECK(parts.weight_grad.allclose(whole.weight_grad, tolerance, tolerance));
        CHECK(parts.bias_grad.allclose(whole.bias_grad, tolerance, tolerance));
        CHECK(parts.mean.allclose(whole.mean, tolerance, tolerance));
        CHECK(parts.var.allclose(whole.var, tolerance, tolerance));
      }
    }
  }
}

namespace {

/// Gradients of a penalty on the gradient of a normalised sum, as WGAN-GP has, over `replicas` shares of x.
std::vector<at::Tensor> penalty_gradients(int64_t replicas, const at::Tensor& x, const at::Tensor& weights) {
  const auto devices = DeviceReplicator::create(
                           [&] {
                             auto norm = std::make_shared<SyncBatchNormImpl>(x.size(1));
                             norm->to(x.scalar_type());
                             const torch::NoGradGuard no_grad;
                             norm->weight.copy_(torch::linspace(0.5, 2, x.size(1)));
                             return norm;
                           },
                           {.cpu_replicas = replicas})
                           .value();
  std::vector<at::Tensor> inputs(static_cast<size_t>(replicas));
  const auto shards = x.chunk(replicas), weight_shards = weights.chunk(replicas);
  devices->run([&](int64_t replica) {
    const auto i = static_cast<size_t>(replica);
    inputs[i] = shards[i].detach().clone().set_requires_grad(true);
    // tanh, so that the gradient depends on the output
    const at::Tensor y = devices->module(replica)->as<SyncBatchNorm>()->forward(inputs[i]).tanh();
    const at::Tensor slope = torch::autograd::grad({(y * weight_shards[i]).sum()}, {inputs[i]}, {}, true, true)[0];
    return slope.square().sum() + y.sum() * 0.1;
  });
  std::vector<at::Tensor> dx;
  for (const at::Tensor& input : inputs) dx.push_back(input.grad());
  auto* norm = devices->module()->as<SyncBatchNorm>();
  return {torch::cat(dx), norm->weight.grad(), norm->bias.grad()};
}

}  // namespace

TEST_CASE("The second derivative of synchronised batch normalisation is that of the whole batch",
          "[distributed][sync_batch_norm]") {
  torch::manual_seed(3);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{12, 5}, {12, 3, 4, 6}}) {
    const at::Tensor x = torch::randn(shape, at::kDouble) * 3 + 1, weights = torch::randn(shape, at::kDouble);
    const auto whole = penalty_gradients(1, x, weights);  // LibTorch's
    for (const int64_t replicas : {2, 3}) {
      const auto parts = penalty_gradients(replicas, x, weights);
      for (size_t i = 0; i < whole.size(); ++i) {
        INFO(replicas << " replicas, gradient " << i);
        CHECK(parts[i].allclose(whole[i], 1e-8, 1e-8));
      }
    }
  }
  const at::Tensor x = torch::randn({12, 5}) * 3 + 1, weights = torch::randn({12, 5});
  const auto whole = penalty_gradients(1, x.to(at::kDouble), weights.to(at::kDouble));
  const auto parts = penalty_gradients(2, x, weights);
  for (size_t i = 0; i < whole.size(); ++i) CHECK(parts[i].to(at::kDouble).allclose(whole[i], 1e-3, 1e-4));
}

namespace {
std::atomic<int> g_backwards = 0,
                 g_undefined = 0;  // calls of native_batch_norm_backward, and their undefined tensors
}

// CUDA needs all of them defined, even those that it does not read.
TEST_CASE("The backward pass of synchronised batch normalisation has no undefined tensor",
          "[distributed][sync_batch_norm]") {
  const auto look = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    if (std::string_view(function.name()) != "aten::native_batch_norm_backward") return nullptr;
    ++g_backwards;
    for (const c10::IValue& input : function.inputs()) {
      if (input.isNone() || (input.isTensor() && !input.toTensor().defined())) ++g_undefined;
    }
    return nullptr;
  };
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback(look).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  on_replicas(2, torch::randn({12, 5}), torch::randn({12, 5}));
  at::removeCallback(handle);
  CHECK(g_backwards == 2);
  CHECK(g_undefined == 0);
}

TEST_CASE("A replica that fails releases the replicas that wait for it in batch normalisation",
          "[distributed][sync_batch_norm]") {
  const auto devices = DeviceReplicator::create([] { return SyncBatchNorm(4); }, {.cpu_replicas = 3}).value();
  const auto body = [&](int64_t replica, bool fail) {
    if (fail && replica == 2) throw std::runtime_error("row 5 is broken");
    return devices->module(replica)->as<SyncBatchNorm>()->forward(torch::randn({6, 4})).sum();
  };
  CHECK_THROWS(devices->run([&](int64_t replica) { return body(replica, true); }));
  CHECK_NOTHROW(devices->run([&](int64_t replica) { return body(replica, false); }));
}

TEST_CASE("Models with our batch normalisation are converted, and others are refused",
          "[distributed][sync_batch_norm]") {
  torch::nn::Sequential model(SyncBatchNorm(SyncBatchNormOptions{.num_features = 4, .synchronize = false}),
                              torch::nn::Linear(4, 4), SyncBatchNorm(4));
  CHECK(synchronize_batch_norm(*model) == 2);
  CHECK(model[0]->as<SyncBatchNorm>()->options.synchronize);
  CHECK(synchronize_batch_norm(*model, false) == 2);
  CHECK(!model[2]->as<SyncBatchNorm>()->options.synchronize);
  torch::nn::Sequential foreign(torch::nn::BatchNorm1d(4));
  CHECK_THROWS_AS(synchronize_batch_norm(*foreign), c10::ValueError);
  CHECK_THROWS_AS(SyncBatchNorm(0), c10::ValueError);
  CHECK_THROWS_AS(SyncBatchNorm(4)->forward(torch::ones({2, 5})), c10::ValueError);
}

TEST_CASE("Training with one value per channel is refused, as in PyTorch", "[distributed][sync_batch_norm]") {
  SyncBatchNorm norm(3);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{1, 3}, {1, 3, 1, 1}}) {
    CHECK_THROWS_WITH(norm->forward(torch::randn(shape)),
                      Catch::Contains("Expected more than 1 value per channel when training"));
  }
  CHECK(norm->running_var.equal(torch::ones({3})));
  CHECK(norm->num_batches_tracked.item<int64_t>() == 0);
  norm->forward(torch::randn({1, 3, 1, 2}));
  CHECK(norm->running_var.isfinite().all().item<bool>());
  norm->eval();
  CHECK(norm->forward(torch::randn({1, 3})).isfinite().all().item<bool>());
}

TEST_CASE("Layers that are not synchronised keep the running statistics of the first replica",
          "[distributed][sync_batch_norm]") {
  const auto devices =
      DeviceReplicator::create([] { return SyncBatchNorm(3); }, {.cpu_replicas = 2, .sync_batch_norm = false}).value();
  const auto norm = [&](int64_t replica) { return devices->module(replica)->as<SyncBatchNorm>(); };
  CHECK(!norm(1)->options.synchronize);
  std::vector<at::Tensor> means(2);  // at the start of a step
  for (int step = 0; step < 3; ++step) {
    const at::Tensor expected = norm(0)->running_mean.clone();
    devices->run([&](int64_t replica) {
      means[static_cast<size_t>(replica)] = norm(replica)->running_mean.clone();
      return norm(replica)->forward(torch::randn({6, 3}) + replica).sum();
    });
    CHECK(means[0].equal(expected));
    CHECK(means[1].equal(expected));
    CHECK(!norm(1)->running_mean.equal(norm(0)->running_mean));
  }
}
