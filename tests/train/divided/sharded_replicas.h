#pragma once
/// Training on several GPUs that divide gradients and optimizer state among them.

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "test_util.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

#define NEEDS_GPUS(count) \
  if (torch::cuda::device_count() < (count)) TRAINKIT_SKIP("needs " #count " GPUs")

namespace trainkit::test {

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

inline std::unique_ptr<Optimizer> optimizer_of(const std::string& name) {
  if (name == "sgd") return std::make_unique<SGD>(SGDOptions{.lr = 0.05, .momentum = 0.9});
  if (name == "muon") return std::make_unique<Muon>(MuonOptions{.lr = 0.01});
  return std::make_unique<AdamW>(AdamWOptions{.lr = 0.01});
}

inline DeviceReplicatorOptions placing_of(const ReplicaSetup& setup) {
  DeviceReplicatorOptions options{.strategy = Strategy::kDataParallel,
                                  .device = at::kCUDA,
                                  .sharding = setup.sharding,
                                  .bucket_bytes = 2048,
                                  .first_bucket_bytes = 512};
  for (int64_t gpu = 0; gpu < setup.gpus; ++gpu) options.gpu_ids.push_back(gpu);
  return options;
}

inline Batch rows_at(int64_t step, int64_t micro_batch, const ReplicaSetup& setup) {
  const int64_t rows = setup.rows[static_cast<size_t>(step) % setup.rows.size()];
  at::Tensor x = at::arange(rows * 7, at::kFloat).view({rows, 7}).add(static_cast<double>(step * 31 + micro_batch * 5));
  x.sin_();
  if (step == 2 && micro_batch == 0 && setup.bad_row != 0) x[-1][0] = setup.bad_row;
  const std::vector<FieldSpec> fields{{.name = "x", .dtype = at::kFloat, .shape = {7}}};
  return Batch(std::make_shared<const std::vector<FieldSpec>>(fields), {x});
}

inline LossOutput squares_of(torch::nn::Module& model, const Batch& batch) {
  return model.as<DividedNetImpl>()->forward(batch["x"]).square().mean();
}

inline std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().cpu().clone());
  return copies;
}

/// Parameters and buffers of all replicas.
inline std::vector<at::Tensor> weights_of(const DeviceReplicator& devices) {
  std::vector<at::Tensor> all;
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
    for (const auto& tensors : {devices.module(replica)->parameters(), devices.module(replica)->buffers()}) {
      for (const at::Tensor& copy : on_host(tensors)) all.push_back(copy);
    }
  }
  return all;
}

inline int64_t bytes_of_state(const Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const auto& [name, value] : optimizer.state_dict()) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor && !name.ends_with(".step")) bytes += static_cast<int64_t>(tensor->nbytes());
  }
  return bytes;
}

inline std::unique_ptr<DeviceReplicator> devices_of_setup(const ReplicaSetup& setup) {
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

inline void take_steps(TrainStep& step, const ReplicaSetup& setup, const LossFunction& loss, int64_t from, int64_t to,
                       ReplicaRun& outcome) {
  for (int64_t s = from; s <= to; ++s) {
    for (int64_t m = 0; m < setup.step.grad_accum_steps; ++m) step.accumulate(rows_at(s, m, setup), loss);
    const StepMetrics metrics = step.finish();
    outcome.losses.push_back(metrics.loss.item<double>());
    if (metrics.grad_norm.defined()) outcome.norms.push_back(metrics.grad_norm.item<double>());
  }
}

inline ReplicaRun train_replicas(const ReplicaSetup& setup) {
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

inline double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double one = (a[i].to(at::kDouble) - b[i].to(at::kDouble)).abs().max().item<double>();
    most = std::max(most, std::isfinite(one) ? one : INFINITY);
  }
  return most;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
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
inline void check_as_whole(const ReplicaRun& sharded, const ReplicaRun& whole, double tolerance) {
  CHECK(largest_difference(sharded.losses, whole.losses) <= tolerance);
  CHECK(largest_difference(sharded.norms, whole.norms) <= tolerance);
  CHECK(largest_difference(sharded.weights, whole.weights) <= tolerance);
  CHECK(largest_difference(sharded.averages, whole.averages) <= tolerance);
}

inline const std::vector<Sharding> kDivided = {Sharding::kOptimizer, Sharding::kGradients};

}  // namespace trainkit::test
