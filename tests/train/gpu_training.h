#pragma once
/// A small model that trains on a GPU, eagerly or with CUDA graphs.

#include "batch_norm_net.h"
#include "optim/optimizer_parts.h"
#include "test_util.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/train_step.h"

#define NEEDS_GPU \
  if (!torch::cuda::is_available()) TRAINKIT_SKIP("there is no GPU")

namespace trainkit::test {

inline const at::Device kGpu(at::kCUDA, 0);

/// Rows on the GPU; `broken` makes one value infinite.
inline Batch gpu_batch(int64_t rows, uint64_t seed, bool broken = false) {
  const Batch batch = random_batch(rows, seed);
  if (broken) batch["x"][0][0] = std::numeric_limits<float>::infinity();
  return batch.to(kGpu);
}

struct GpuTraining {
  explicit GpuTraining(CudaGraph graph, TrainStepOptions options = {}, int64_t width = 64,
                       const DeviceReplicatorOptions& placing = {.device = kGpu})
      : devices(
            (torch::manual_seed(1), DeviceReplicator::create([=] { return BatchNormNet(width); }, placing).value())) {
    for (auto& group : default_param_groups(*devices->module())) optimizer.add_param_group(std::move(group));
    scheduler.emplace(optimizer, create_schedule({.name = "cosine", .total_steps = 50, .warmup_steps = 5}).value());
    options.cuda_graph = graph;
    step.emplace(*devices, optimizer, options, &*scheduler);
  }

  StepMetrics run(const std::vector<Batch>& batches) {
    for (const Batch& batch : batches) step->accumulate(batch, loss);
    return step->finish();
  }

  std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> all = devices->module()->parameters();
    for (const at::Tensor& buffer : devices->module()->buffers()) all.push_back(buffer);
    for (const auto& [name, value] : optimizer.state_dict()) {
      if (const auto* tensor = std::get_if<at::Tensor>(&value)) all.push_back(*tensor);
    }
    for (const at::Tensor& lr : trainkit::detail::OptimizerParts::of(optimizer).rates.on_device()) all.push_back(lr);
    for (const auto& [name, average] : step->averages()) all.push_back(average);
    return all;
  }

  std::unique_ptr<DeviceReplicator> devices;
  AdamW optimizer{AdamWOptions{.lr = 1e-2, .capturable = true}};
  std::optional<LRScheduler> scheduler;
  std::optional<TrainStep> step;
  LossFunction loss = make_loss_function(loss_and_hits<BatchNormNet>);
};

inline bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || torch::allclose(a, b, 0, 0, /*equal_nan=*/true));
}

}  // namespace trainkit::test
