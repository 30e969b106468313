// Compares several devices with one: losses of DataParallel, and sums of all-reduce.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/train_step.h"
#include "trainkit/verify.h"
#include "trainkit/verify_net.h"

namespace trainkit::tool {
namespace {

constexpr double kLossBound = 1e-5;
constexpr int64_t kLossSteps = 12, kRowsPerDevice = 24;
constexpr uint64_t kLossSeed = 21;

struct ReplicaLosses {
  std::vector<double> losses;  // of each step, read after the last one
  int64_t graph_steps = 0;
};

/// Copies the rows of each replica to its device, as a Prefetcher does.
Batch divided(const Batch& rows, const DeviceReplicator& devices) {
  auto content = std::make_shared<Batch::Content>(*rows.content());
  for (int64_t i = 0; i < devices.replicas(); ++i) {
    content->shards.push_back(rows.shard(i, devices.replicas(), devices.device(i)).content());
  }
  return Batch(std::move(content));
}

/// Trains on `batches`: on several GPUs as one CUDA graph, else eagerly.
ReplicaLosses train_on(const DeviceReplicatorOptions& options, int64_t replicas, const std::vector<Batch>& batches) {
  torch::manual_seed(kLossSeed);
  const auto devices = DeviceReplicator::create([] { return VerifyNet(0); }, options).value();
  TORCH_CHECK(devices->replicas() == replicas, "got ", devices->replicas(), " replicas, expected ", replicas);
  const bool divides = replicas > 1 && devices->device().is_cuda();
  AdamW optimizer({.lr = 1e-2, .capturable = devices->device().is_cuda()});
  for (auto& group : default_param_groups(*devices->module())) optimizer.add_param_group(std::move(group));
  TrainStep step(*devices, optimizer, {.grad_clip = 1, .cuda_graph = divides ? CudaGraph::kAuto : CudaGraph::kOff});
  const LossFunction loss = verify_loss();
  std::vector<at::Tensor> losses;
  for (const Batch& batch : batches) {
    const Batch rows = divides ? divided(batch, *devices) : replicas > 1 ? batch : batch.to(devices->device());
    losses.push_back(step(rows, loss).loss);
  }
  ReplicaLosses trained{{}, step.graph_steps()};
  for (const at::Tensor& value : losses) trained.losses.push_back(value.item<double>());
  return trained;
}

/// The largest relative difference of two runs' losses; NaN if one of them is.
double largest_error(const std::vector<double>& losses, const std::vector<double>& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(losses[i] - expected[i]) / std::abs(expected[i]);
    if (!std::isnan(largest) && !(error <= largest)) largest = error;  // keeps NaN
  }
  return largest;
}

}  // namespace

Checked verify_data_parallel(at::DeviceType type, int devices) {
  const at::Device first(type, type == at::kCUDA ? c10::DeviceIndex{0} : c10::DeviceIndex{-1});
  torch::manual_seed(kLossSeed + 1);
  std::vector<Batch> batches;
  for (int64_t i = 0; i < kLossSteps; ++i) batches.push_back(verify_batch(kRowsPerDevice * devices));
  const std::vector<double> one = train_on({.strategy = Strategy::kSingle, .device = first}, 1, batches).losses;
  double largest = 0;
  int64_t graph_steps = kLossSteps;  // the fewest
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
    if (sharding != Sharding::kNone && type == at::kCPU) continue;
    const ReplicaLosses trained = train_on({.strategy = Strategy::kDataParallel,
                                            .device = first,
                                            .cpu_replicas = type == at::kCPU ? devices : 1,
                                            .share_weights = false,
                                            .sharding = sharding},
                                           devices, batches);
    const double error = largest_error(trained.losses, one);
    if (!std::isnan(largest) && !(error <= largest)) largest = error;
    graph_steps = std::min(graph_steps, trained.graph_steps);
  }
  return passed_if(
      largest <= kLossBound,
      fmt::format("{} steps on {} {}: the losses differ from those of one by {:.2g} at most, bound {:g}", kLossSteps,
                  devices, type == at::kCUDA ? "GPUs, with each --shard" : "CPU replicas", largest, kLossBound),
      {{"devices", devices}, {"largest_error", largest}, {"bound", kLossBound}, {"graph_steps", graph_steps}},
      "send this report to the developers; train on one GPU, or with NCCL_P2P_DISABLE=1 if that helps");
}

Checked verify_all_reduce(at::DeviceType type, int devices) {
  constexpr int64_t kRounds = 20;
  std::atomic<int64_t> wrong{0}, compared{0};
  const absl::Status status = run_ranks(type, devices, [&](c10d::Backend& backend, at::Device device, int rank) {
    for (int64_t round = 0; round < kRounds; ++round) {
      const int64_t count = 1 + round * round * 997;  // odd sizes, up to 1.4 MiB of float32
      for (const at::ScalarType number : {at::kLong, at::kFloat}) {
        // Value i of rank r is i + r: sums below 2^24 are exact in float32.
        const at::Tensor index = at::arange(count, at::TensorOptions().dtype(number).device(device));
        std::vector<at::Tensor> sum = {index + rank};
        backend.allreduce(sum)->wait();
        const at::Tensor expected = index * devices + devices * (devices - 1) / 2;
        wrong += sum[0].ne(expected).sum().item<int64_t>();
        compared += count;
      }
    }
  });
  if (!status.ok())
    return {Checked::State::kFailed, std::string(status.message()), nullptr,
            "see docs/troubleshooting.md; NCCL_DEBUG=INFO logs details"};
  return passed_if(
      wrong == 0,
      fmt::format("{} of {} sums over {} {} differ from the exact ones", wrong.load(), compared.load(), devices,
                  type == at::kCUDA ? "GPUs (NCCL)" : "CPU ranks (Gloo)"),
      {{"devices", devices}, {"wrong", wrong.load()}, {"compared", compared.load()}},
      "send this report to the developers; NCCL_P2P_DISABLE=1 shows whether links between GPUs are broken");
}

}  // namespace trainkit::tool
