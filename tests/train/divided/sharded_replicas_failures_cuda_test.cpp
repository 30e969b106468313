// Failures on several GPUs that divide gradients and optimizer state among them, on simulated devices.
#include <atomic>
#include <stdexcept>

#include "cuda_sim/cuda_sim_control.h"
#include "test_util.h"
#include "train/divided/sharded_replicas.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/distributed/sync_batch_norm.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("A sharded GPU that throws ends the step on all of them, and the next step is that of an uninterrupted run",
          "[train][sharded_replicas_failures_cuda]") {
  NEEDS_GPUS(3);
  for (const Sharding sharding : kDivided) {
    for (const int64_t failing : {0, 1, 2}) {
      for (const bool in_backward : {false, true}) {
        INFO("sharding " << static_cast<int>(sharding) << ", replica " << failing << ", backward " << in_backward);
        const ReplicaSetup setup{.sharding = sharding, .step = {.grad_accum_steps = 2}};
        const auto devices = devices_of_setup(setup);
        const auto optimizer = optimizer_of("adamw");
        TrainStep step(*devices, *optimizer, setup.step);
        std::atomic<int> left = -1;
        const auto fail = [&] { throw std::runtime_error("row 17 is not a picture"); };
        const LossFunction loss = [&](torch::nn::Module& model, const Batch& batch) -> LossOutput {
          const bool fails = batch["x"].device().index() == failing && left >= 0 && left-- == 0;
          if (fails && !in_backward) fail();
          at::Tensor hidden = model.as<DividedNetImpl>()->forward(batch["x"]);
          if (fails) hidden.register_hook([&](const at::Tensor&) { fail(); });
          return hidden.square().mean();
        };
        ReplicaRun outcome;
        take_steps(step, setup, loss, 1, 2, outcome);
        for (const int micro_batch : {0, 1}) {
          const auto before = weights_of(*devices);
          left = micro_batch;
          ReplicaRun ignored;
          CHECK_THROWS_WITH(take_steps(step, setup, loss, 3, 3, ignored), Catch::Contains("row 17 is not a picture"));
          CHECK(left == -1);
          CHECK(at::equal(weights_of(*devices)[0], before[0]));
        }
        take_steps(step, setup, loss, 3, 4, outcome);
        const ReplicaRun whole = train_replicas(setup);
        CHECK(largest_difference(outcome.losses, whole.losses) == 0);
        CHECK(at::equal(weights_of(*devices)[0], whole.weights[0]));
      }
    }
  }
  if (has_cuda_sim()) CHECK(take_cuda_sim_findings() == "");
}

TEST_CASE("Sharded GPUs name a parameter without a gradient, unless an earlier micro-batch has used it",
          "[train][sharded_replicas_failures_cuda]") {
  NEEDS_GPUS(2);
  for (const Sharding sharding : kDivided) {
    for (const bool is_used : {true, false}) {
      const auto devices = devices_of_setup({.sharding = sharding, .gpus = 2});
      AdamW optimizer({.lr = 0.01});
      TrainStep step(*devices, optimizer, {.grad_accum_steps = 2});
      const LossFunction whole = squares_of;
      const LossFunction first_layer = [](torch::nn::Module& model, const Batch& batch) -> LossOutput {
        return model.as<DividedNetImpl>()->in(batch["x"]).square().mean();
      };
      step.accumulate(rows_at(1, 0, {}), is_used ? whole : first_layer);
      const auto end = [&] {
        step.accumulate(rows_at(1, 1, {}), first_layer);
        step.finish();
      };
      if (is_used) {
        end();
      } else {
        CHECK_THROWS_WITH(end(), Catch::Contains("the loss did not reach tied"));
      }
    }
  }
}

namespace {

/// Replicas that wait for each other inside the model, in forward and backward.
struct MeetingNetImpl : torch::nn::Module {
  MeetingNetImpl()
      : first(register_module("first", torch::nn::Linear(torch::nn::LinearOptions(7, 32).bias(false)))),
        norm(register_module("norm", SyncBatchNorm(SyncBatchNormOptions(32)))),
        last(register_module("last", torch::nn::Linear(32, 32))) {}
  at::Tensor forward(const at::Tensor& x) { return last(norm(first(x)).relu()); }
  torch::nn::Linear first;
  SyncBatchNorm norm;
  torch::nn::Linear last;
};
TORCH_MODULE(MeetingNet);

}  // namespace

TEST_CASE("Sharded GPUs train a model whose layers wait for all GPUs, also after one of them failed",
          "[train][sharded_replicas_failures_cuda]") {
  NEEDS_GPUS(3);
  std::vector<std::vector<at::Tensor>> weights;
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
    torch::manual_seed(1);
    const auto devices =
        DeviceReplicator::create([] { return MeetingNet(); }, placing_of({.sharding = sharding})).value();
    AdamW optimizer({.lr = 0.001});
    TrainStep step(*devices, optimizer, {.grad_accum_steps = 2});
    std::atomic<bool> fails{false};
    const LossFunction loss = [&](torch::nn::Module& model, const Batch& batch) -> LossOutput {
      const at::Tensor out = model.as<MeetingNetImpl>()->forward(batch["x"]);
      if (fails && batch["x"].device().index() == 1) {
        out.register_hook([](const at::Tensor&) { throw std::runtime_error("row 17 is not a picture"); });
      }
      return (out - 1).square().mean();
    };
    for (int64_t i = 1; i <= 4; ++i) {
      fails = i == 3;
      const auto run = [&] {
        for (const int64_t micro_batch : {0, 1}) step.accumulate(rows_at(i, micro_batch, {}), loss);
        step.finish();
      };
      if (fails) CHECK_THROWS_WITH(run(), Catch::Contains("row 17 is not a picture"));
      if (!fails) run();
    }
    weights.push_back({});
    for (int64_t copy = 0; copy < 3; ++copy) {
      for (const at::Tensor& tensor : on_host(devices->module(copy)->parameters())) weights.back().push_back(tensor);
    }
  }
  CHECK(largest_difference(weights[1], weights[0]) <= 1e-5);
  CHECK(largest_difference(weights[2], weights[0]) <= 1e-5);
  if (has_cuda_sim()) CHECK(take_cuda_sim_findings() == "");
}

TEST_CASE("The optimizer of one sharded GPU is not clipped or unscaled alone",
          "[train][sharded_replicas_failures_cuda]") {
  NEEDS_GPUS(2);
  const auto devices = devices_of_setup({.sharding = Sharding::kOptimizer, .gpus = 2});
  AdamW optimizer({.lr = 0.01});
  TrainStep step(*devices, optimizer);
  const LossFunction loss = squares_of;
  step.accumulate(rows_at(1, 0, {}), loss);
  CHECK_THROWS_WITH(clip_grad_norm_(optimizer, 1), Catch::Contains("TrainStep clips and unscales together"));
  step.finish();
}
