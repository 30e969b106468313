// DataParallel on several GPUs that divide gradients and optimizer state among them, on simulated devices.
#include <map>

#include "../cuda_sim/cuda_sim_control.h"
#include "test_util.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/distributed/sync_batch_norm.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

#ifdef TRAINKIT_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

using namespace trainkit;
using namespace trainkit::test;

namespace {

constexpr int64_t kReplicaRows = 12, kReplicaSteps = 4;

/// Layers whose sizes divide neither by the GPUs nor by the alignment of a shard. `wide` is used twice, `tied` has the
/// memory of the last weight, and one parameter is frozen.
struct DividedNetImpl : torch::nn::Module {
  DividedNetImpl() {
    in = register_module("in", torch::nn::Linear(7, 33));
    wide = register_module("wide", torch::nn::Linear(33, 33));
    norm = register_module("norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(7).affine(false)));
    out = register_module("out", torch::nn::Linear(33, 3));
    tied = register_parameter("tied", out->weight);
    frozen = register_parameter("frozen", torch::ones({5}), /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor normed = x.size(0) > 1 ? norm(x) : x;
    const at::Tensor hidden = wide(wide(in(normed).relu()).relu()).relu();
    return out(hidden) + at::linear(hidden, out->weight);
  }
  torch::nn::Linear in{nullptr}, wide{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor tied, frozen;
};
TORCH_MODULE(DividedNet);

struct ReplicaSetup {
  Sharding sharding = Sharding::kNone;
  std::string optimizer = "adamw";
  int64_t gpus = 3;
  TrainStepOptions step = {};
  double bad_row = 0;                          // replaces a number of the last row of step 2
  std::vector<int64_t> rows = {kReplicaRows};  // of each step, in turn
};

struct ReplicaRun {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> weights, averages;  // averages: as weights, after swap_averages()
  std::vector<int64_t> state_bytes;           // per GPU
};

std::unique_ptr<Optimizer> optimizer_of(const std::string& name) {
  if (name == "sgd") return std::make_unique<SGD>(SGDOptions{.lr = 0.05, .momentum = 0.9});
  if (name == "muon") return std::make_unique<Muon>(MuonOptions{.lr = 0.01});
  return std::make_unique<AdamW>(AdamWOptions{.lr = 0.01});
}

DeviceReplicatorOptions placing_of(const ReplicaSetup& setup) {
  DeviceReplicatorOptions options{.strategy = Strategy::kDataParallel,
                                  .device = at::kCUDA,
                                  .sharding = setup.sharding,
                                  .bucket_bytes = 2048,
                                  .first_bucket_bytes = 512};
  for (int64_t gpu = 0; gpu < setup.gpus; ++gpu) options.gpu_ids.push_back(gpu);
  return options;
}

Batch rows_at(int64_t step, int64_t micro_batch, const ReplicaSetup& setup) {
  const int64_t rows = setup.rows[static_cast<size_t>(step) % setup.rows.size()];
  at::Tensor x = at::arange(rows * 7, at::kFloat).view({rows, 7}).add(static_cast<double>(step * 31 + micro_batch * 5));
  x.sin_();
  if (step == 2 && micro_batch == 0 && setup.bad_row != 0) x[-1][0] = setup.bad_row;
  const std::vector<FieldSpec> fields{{.name = "x", .dtype = at::kFloat, .shape = {7}}};
  return Batch(std::make_shared<const std::vector<FieldSpec>>(fields), {x});
}

LossOutput squares_of(torch::nn::Module& model, const Batch& batch) {
  return model.as<DividedNetImpl>()->forward(batch["x"]).square().mean();
}

std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().cpu().clone());
  return copies;
}

/// Parameters and buffers of all replicas.
std::vector<at::Tensor> weights_of(const DeviceReplicator& devices) {
  std::vector<at::Tensor> all;
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
    for (const auto& tensors : {devices.module(replica)->parameters(), devices.module(replica)->buffers()}) {
      for (const at::Tensor& copy : on_host(tensors)) all.push_back(copy);
    }
  }
  return all;
}

int64_t bytes_of_state(const Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const auto& [name, value] : optimizer.state_dict()) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor && !name.ends_with(".step")) bytes += static_cast<int64_t>(tensor->nbytes());
  }
  return bytes;
}

std::unique_ptr<DeviceReplicator> devices_of_setup(const ReplicaSetup& setup) {
  auto devices = DeviceReplicator::create([] { return DividedNet(); }, placing_of(setup)).value();
  const at::NoGradGuard no_grad;
  double shift = 0;
  for (const at::Tensor& parameter : devices->module()->parameters()) {
    const at::Tensor numbers = at::arange(parameter.numel(), at::kFloat).mul(0.7).add(++shift).cos().mul(0.3);
    parameter.copy_(numbers.view(parameter.sizes()));
  }
  devices->synchronize();
  return devices;
}

void take_steps(TrainStep& step, const ReplicaSetup& setup, const LossFunction& loss, int64_t from, int64_t to,
                ReplicaRun& outcome) {
  for (int64_t s = from; s <= to; ++s) {
    for (int64_t m = 0; m < setup.step.grad_accum_steps; ++m) step.accumulate(rows_at(s, m, setup), loss);
    const StepMetrics metrics = step.finish();
    outcome.losses.push_back(metrics.loss.item<double>());
    if (metrics.grad_norm.defined()) outcome.norms.push_back(metrics.grad_norm.item<double>());
  }
}

ReplicaRun train_replicas(const ReplicaSetup& setup) {
  const auto devices = devices_of_setup(setup);
  const auto optimizer = optimizer_of(setup.optimizer);
  const LossFunction loss = squares_of;
  TrainStep step(*devices, *optimizer, setup.step);
  ReplicaRun outcome;
  take_steps(step, setup, loss, 1, kReplicaSteps, outcome);
  outcome.weights = weights_of(*devices);
  step.swap_averages();
  outcome.averages = weights_of(*devices);
  for (const Optimizer* one : step.optimizers()) outcome.state_bytes.push_back(bytes_of_state(*one));
  return outcome;
}

double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double one = (a[i].to(at::kDouble) - b[i].to(at::kDouble)).abs().max().item<double>();
    most = std::max(most, std::isfinite(one) ? one : INFINITY);
  }
  return most;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    most = std::max(most, same                         ? 0
                          : std::isfinite(a[i] - b[i]) ? std::abs(a[i] - b[i]) / std::max(1.0, std::abs(a[i]))
                                                       : INFINITY);
  }
  return most;
}

/// Every replica of `sharded` has the results of `whole`.
void check_as_whole(const ReplicaRun& sharded, const ReplicaRun& whole, double tolerance) {
  CHECK(largest_difference(sharded.losses, whole.losses) <= tolerance);
  CHECK(largest_difference(sharded.norms, whole.norms) <= tolerance);
  CHECK(largest_difference(sharded.weights, whole.weights) <= tolerance);
  CHECK(largest_difference(sharded.averages, whole.averages) <= tolerance);
}

const std::vector<Sharding> kDivided = {Sharding::kOptimizer, Sharding::kGradients};

}  // namespace

#define NEEDS_GPUS(count) \
  if (torch::cuda::device_count() < (count)) TRAINKIT_SKIP("needs " #count " GPUs")

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

TEST_CASE("A sharded GPU that throws ends the step on all of them, and the next step is that of an uninterrupted run",
          "[train][sharded_replicas_cuda]") {
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
          "[train][sharded_replicas_cuda]") {
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
          "[train][sharded_replicas_cuda]") {
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

TEST_CASE("The optimizer of one sharded GPU is not clipped or unscaled alone", "[train][sharded_replicas_cuda]") {
  NEEDS_GPUS(2);
  const auto devices = devices_of_setup({.sharding = Sharding::kOptimizer, .gpus = 2});
  AdamW optimizer({.lr = 0.01});
  TrainStep step(*devices, optimizer);
  const LossFunction loss = squares_of;
  step.accumulate(rows_at(1, 0, {}), loss);
  CHECK_THROWS_WITH(clip_grad_norm_(optimizer, 1), Catch::Contains("TrainStep clips and unscales together"));
  step.finish();
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
