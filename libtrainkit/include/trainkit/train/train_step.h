#pragma once
/// One optimizer step: forward, backward, unscale, clip, update, schedule.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/amp/grad_scaler.h"
#include "trainkit/data/batch.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/loss.h"

namespace trainkit {

/// The type of the arithmetic. Weights, gradients and optimizer state are float32 in every case.
enum class Precision {
  kFp32,
  kBf16,  ///< autocast to bfloat16
  kFp16   ///< autocast to float16, with a GradScaler
};

struct TrainStepOptions {
  Precision precision = Precision::kFp32;
  /// Micro-batches per optimizer step.
  int64_t grad_accum_steps = 1;
  /// Gradients longer than this (2-norm over all parameters) are shortened to it; 0 does not clip.
  double grad_clip = 0;
  /// Free gradients after each step, or keep their memory and zero it. Freed is faster for small models, since autograd
  /// then hands its buffers over instead of adding to zeros; kept is faster for large embedding tables.
  bool zero_grad_set_to_none = true;
  GradScalerOptions scaler = {};
};

/// Scalars of one step, on the device, detached; reading one waits for the device.
struct StepMetrics {
  /// Mean over the micro-batches of the step, by their weights.
  at::Tensor loss;
  std::vector<std::pair<std::string, at::Tensor>> metrics;
  /// 2-norm of the gradients before clipping; undefined unless grad_clip > 0.
  at::Tensor grad_norm;
  /// Sum of the micro-batches' weights (LossOutput::weight), known to the host.
  double weight = 0;
};

/// Runs optimizer steps. Nothing in it reads the device, so the host runs ahead; a step whose gradients are not finite
/// (kFp16) is skipped on the device and moves neither the weights nor the schedule.
///
///   TrainStep step(*devices, optimizer, {.grad_clip = 1.0});
///   while (auto batch = loader->next().value()) { auto metrics = step(*batch, loss); }
///
/// Not thread-safe. Exceptions of the loss function and of LibTorch pass through; the gradients accumulated so far are
/// dropped then, and weights and optimizer state are untouched.
class TrainStep {
 public:
  /// Keeps references to all three. An optimizer without parameters gets default_param_groups of the model.
  /// Throws c10::ValueError for options out of range and for kFp16 on the CPU, which has no fast float16 kernels.
  TrainStep(DeviceReplicator& devices, Optimizer& optimizer, const TrainStepOptions& options = {},
            LRScheduler* scheduler = nullptr);

  /// Forward and backward of one micro-batch; its gradient counts by its share of the step's weight.
  void accumulate(const Batch& batch, const LossFunction& loss);

  /// Clips, updates and moves the schedule, from what was accumulated: grad_accum_steps micro-batches, or fewer at the
  /// end of the data. Throws c10::Error if nothing was accumulated.
  StepMetrics finish();

  /// A whole step from one batch: accumulate, then finish.
  StepMetrics operator()(const Batch& batch, const LossFunction& loss) {
    accumulate(batch, loss);
    return finish();
  }

  /// Micro-batches accumulated since the last finish().
  int64_t accumulated() const { return accumulated_; }
  GradScaler& scaler() { return scaler_; }
  const GradScaler& scaler() const { return scaler_; }
  const TrainStepOptions& options() const { return options_; }

 private:
  void add_metrics(const LossOutput& output, double share);

  DeviceReplicator& devices_;
  Optimizer& optimizer_;
  LRScheduler* scheduler_;
  TrainStepOptions options_;
  GradScaler scaler_;
  StepMetrics metrics_;
  int64_t accumulated_ = 0;
  double weight_ = 0;           // of the micro-batches accumulated so far
  double expected_weight_ = 0;  // of the whole step if all micro-batches weigh as much as the first
};

}  // namespace trainkit
