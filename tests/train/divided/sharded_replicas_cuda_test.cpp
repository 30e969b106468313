// DataParallel on several GPUs that divide gradients and optimizer state among them, on simulated devices.
#include "cuda_sim/cuda_sim_control.h"
#include "test_util.h"
#include "train/divided/sharded_replicas.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/train_step.h"

#ifdef TRAINKIT_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("GPUs with a part of the optimizer's state train as GPUs with all of it", "[train][sharded_replicas_cuda]") {
  NEEDS_GPUS(3);
  for (const std::string optimizer : {"adamw", "sgd", "muon"}) {
    for (const int64_t gpus : {2, 3}) {
      for (const int64_t micro_batches : {1, 3}) {
        INFO(optimizer << " on " << gpus << " GPUs, " << micro_batches << " micro-batches");
        ReplicaSetup setup{
            .optimizer = optimizer, .gpus = gpus, .step = {.grad_accum_steps = micro_batches, .ema_decay = 0.9}};
        const ReplicaRun whole = train_replicas(setup);
        setup.sharding = Sharding::kOptimizer;
        const ReplicaRun sharded = train_replicas(setup);
        check_as_whole(sharded, whole, 0);  // sums have one order
        for (const int64_t bytes : sharded.state_bytes) {
          if (optimizer == "muon") break;  // whole matrices, of which there are few
          CHECK(static_cast<double>(bytes) <
                static_cast<double>(whole.state_bytes[0]) * 1.2 / static_cast<double>(gpus));
        }
        setup.sharding = Sharding::kGradients;
        // Sums over the GPUs come before those over micro-batches. Muon computes in bfloat16.
        check_as_whole(train_replicas(setup), whole, micro_batches == 1 ? 0 : optimizer == "muon" ? 1e-3 : 1e-6);
      }
    }
  }
  if (has_cuda_sim()) CHECK(take_cuda_sim_findings() == "");
}

TEST_CASE("Sharded GPUs clip by the norm of all parts and skip a step that is not finite on one of them",
          "[train][sharded_replicas_cuda]") {
  NEEDS_GPUS(3);
  const std::vector<TrainStepOptions> all = {{.grad_clip = 0.05},
                                             {.skip_nonfinite = true, .ema_decay = 0.9},
                                             {.grad_clip = 0.05, .skip_nonfinite = true},
                                             {.precision = Precision::kFp16, .ema_decay = 0.9},
                                             {.precision = Precision::kFp16, .grad_clip = 0.05},
                                             {.precision = Precision::kBf16, .grad_accum_steps = 2, .grad_clip = 0.05}};
  for (size_t i = 0; i < all.size(); ++i) {
    const bool breaks = all[i].skip_nonfinite || all[i].precision == Precision::kFp16;
    ReplicaSetup setup{.step = all[i], .bad_row = breaks ? INFINITY : 0};
    const ReplicaRun whole = train_replicas(setup);
    CHECK(std::isfinite(whole.weights[0].sum().item<double>()));
    for (const Sharding sharding : kDivided) {
      INFO("options " << i << ", sharding " << static_cast<int>(sharding));
      setup.sharding = sharding;
      check_as_whole(train_replicas(setup), whole, all[i].precision == Precision::kFp32 ? 1e-6 : 2e-5);
    }
  }
}

TEST_CASE("Sharded GPUs train with fewer rows than GPUs, and with steps that end early",
          "[train][sharded_replicas_cuda]") {
  NEEDS_GPUS(3);
  ReplicaSetup setup{.rows = {2, 12, 3}};
  const ReplicaRun whole = train_replicas(setup);
  for (const Sharding sharding : kDivided) {
    setup.sharding = sharding;
    check_as_whole(train_replicas(setup), whole, 1e-6);
  }
  std::vector<std::vector<at::Tensor>> weights;
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
    const auto devices = devices_of_setup({.sharding = sharding});
    const auto optimizer = optimizer_of("adamw");
    TrainStep step(*devices, *optimizer, {.grad_accum_steps = 4});
    const LossFunction loss = squares_of;
    for (int64_t i = 1; i <= 3; ++i) {
      for (int64_t m = 0; m < 5 - i; ++m) step.accumulate(rows_at(i, m, {}), loss);
      step.finish();
    }
    weights.push_back(weights_of(*devices));
  }
  CHECK(largest_difference(weights[1], weights[0]) == 0);
  CHECK(largest_difference(weights[2], weights[0]) <= 1e-6);
}

TEST_CASE("Trained parameters of a frozen model are divided among GPUs, in groups with names and learning rates",
          "[train][sharded_replicas_cuda]") {
  NEEDS_GPUS(2);
  std::vector<std::vector<at::Tensor>> weights;
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
    const auto freeze = [] {
      DividedNet model;
      for (const auto& parameter : model->named_parameters()) {
        parameter.value().set_requires_grad(parameter.key() == "in.weight" || parameter.key() == "wide.bias");
      }
      return model;
    };
    const auto devices = DeviceReplicator::create(freeze, placing_of({.sharding = sharding, .gpus = 2})).value();
    for (const at::Tensor& parameter : devices->module()->parameters()) {
      const at::NoGradGuard no_grad;
      parameter.copy_(at::arange(parameter.numel(), at::kFloat).cos().mul(0.3).view(parameter.sizes()));
    }
    devices->synchronize();
    const auto parameters = devices->module()->named_parameters();
    const auto optimizer = optimizer_of("adamw");
    optimizer->add_param_group({.params = {{"first", parameters["in.weight"]}}});
    optimizer->add_param_group({.params = {{"second", parameters["wide.bias"]}}, .lr_multiple = 2});
    TrainStep step(*devices, *optimizer, {.ema_decay = 0.5});
    const LossFunction loss = squares_of;
    for (int64_t i = 1; i <= 3; ++i) step(rows_at(i, 0, {}), loss);
    weights.push_back(weights_of(*devices));
    CHECK(step.averages(1).front().first == (sharding == Sharding::kNone ? "in.weight" : "first"));
  }
  CHECK(largest_difference(weights[1], weights[0]) == 0);
  CHECK(largest_difference(weights[2], weights[0]) == 0);
}

TEST_CASE("A second TrainStep on several GPUs continues with the optimizer's state", "[train][sharded_replicas_cuda]") {
  NEEDS_GPUS(3);
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
    INFO("sharding " << static_cast<int>(sharding));
    const ReplicaSetup setup{.sharding = sharding};
    const auto devices = devices_of_setup(setup);
    const auto optimizer = optimizer_of("adamw");
    const LossFunction loss = squares_of;
    ReplicaRun outcome;
    for (const auto& [from, to] : {std::pair(1, 2), {3, 4}}) {
      TrainStep step(*devices, *optimizer, setup.step);
      take_steps(step, setup, loss, from, to, outcome);
    }
    outcome.weights = weights_of(*devices);
    const ReplicaRun whole = train_replicas(setup);
    CHECK(largest_difference(outcome.losses, whole.losses) == 0);
    CHECK(largest_difference(outcome.weights, whole.weights) == 0);
  }
}

#ifdef TRAINKIT_WITH_CUDA

namespace {

/// A model without matrix products, whose libraries would allocate workspaces.
struct ThreeVectorsImpl : torch::nn::Module {
  ThreeVectorsImpl() {
    for (const int64_t size : {6'000'000, 2'800'000, 1'200'000}) {
      vectors.push_back(register_parameter("v" + std::to_string(size), torch::full({size}, 0.5)));
    }
  }
  std::vector<at::Tensor> vectors;
};
TORCH_MODULE(ThreeVectors);

int64_t allocated_on(c10::DeviceIndex gpu) {
  at::empty({1}, at::Device(at::kCUDA, gpu));  // initialises the allocator
  return c10::cuda::CUDACachingAllocator::getDeviceStats(gpu).allocated_bytes[0].current;
}

}  // namespace

TEST_CASE("Sharded GPUs have the memory of the table: weights, gradients and their part of the state",
          "[train][sharded_replicas_cuda]") {
  NEEDS_GPUS(3);
  constexpr double kNumbers = 10'000'000;
  for (const int64_t gpus : {2, 3}) {
    for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
      std::vector<int64_t> before;
      for (c10::DeviceIndex gpu = 0; gpu < gpus; ++gpu) before.push_back(allocated_on(gpu));
      DeviceReplicatorOptions placing = placing_of({.sharding = sharding, .gpus = gpus});
      placing.bucket_bytes = placing.first_bucket_bytes = 1 << 20;
      const auto devices = DeviceReplicator::create([] { return ThreeVectors(); }, placing).value();
      AdamW optimizer({.lr = 0.01});
      TrainStep step(*devices, optimizer, {.zero_grad_set_to_none = sharding != Sharding::kNone});
      const LossFunction loss = [](torch::nn::Module& model, const Batch& batch) -> LossOutput {
        at::Tensor sum = batch["x"].mean();
        for (const at::Tensor& vector : model.as<ThreeVectorsImpl>()->vectors) sum = sum + vector.square().mean();
        return sum;
      };
      for (int64_t i = 0; i < 3; ++i) step(rows_at(i, 0, {}), loss);
      const double n = static_cast<double>(gpus);
      const double per_number = sharding == Sharding::kNone        ? 16
                                : sharding == Sharding::kOptimizer ? 8 + 8 / n
                                                                   : 4 + 12 / n;
      for (c10::DeviceIndex gpu = 0; gpu < gpus; ++gpu) {
        const auto bytes = static_cast<double>(allocated_on(gpu) - before[static_cast<size_t>(gpu)]);
        INFO(gpus << " GPUs, sharding " << static_cast<int>(sharding) << ", GPU " << int{gpu});
        CAPTURE(bytes / kNumbers, per_number);
        CHECK(bytes / kNumbers == Approx(per_number).epsilon(0.03));
      }
    }
  }
}

#endif
