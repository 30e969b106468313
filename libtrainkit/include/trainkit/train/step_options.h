#pragma once
/// Options of a TrainStep.

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "trainkit/amp/grad_scaler.h"

namespace trainkit {

namespace detail {
class GraphBackend;
}

/// Data type of the computation. Weights, gradients and optimizer state are always float32.
enum class Precision {
  kFp32,
  kBf16,  ///< autocast to bfloat16
  kFp16   ///< autocast to float16, with a GradScaler
};

/// Whether a step is captured as one CUDA graph: its device work is recorded once and then launched by a single call.
///
/// With kAuto and kOn the caller guarantees that loss function and model read no host values that change between steps.
/// A captured step calls neither of them: numbers that they computed on the host (an annealed loss weight, a counter)
/// keep the values of the capture.
enum class CudaGraph {
  kAuto,  ///< Captures where possible, on CUDA devices. Otherwise graph_reason() says why not.
  kOn,    ///< As kAuto, but an error if it is known from the start that steps cannot be captured.
  kOff    ///< Runs every step eagerly: correct for every loss function, and the default.
};

struct TrainStepOptions {
  Precision precision = Precision::kFp32;
  /// Micro-batches per optimizer step.
  int64_t grad_accum_steps = 1;
  /// Maximum 2-norm of the gradients over all parameters; larger ones are clipped to it. 0 disables clipping.
  double grad_clip = 0;
  /// True frees the gradients after each step; false keeps their memory and zeroes it. Freeing is faster for small
  /// models, since autograd then hands over its buffers instead of adding to zeros. Keeping is faster for large
  /// embedding tables.
  bool zero_grad_set_to_none = true;
  /// Skip a step whose gradients are not finite, in every precision. The device decides. kFp16 skips such steps anyway.
  /// Costs one pass over the gradients, or nothing if they are clipped. Also restores the buffers (BatchNorm's).
  bool skip_nonfinite = false;
  GradScalerOptions scaler = {};
  /// Decay of an exponential moving average of the weights, in [0, 1); 0 disables it. After each step that was not
  /// skipped: average += (1 - ema_decay) * (weight - average). It starts from the weights at construction and takes as
  /// much memory as the trained weights, on each device.
  double ema_decay = 0;
  CudaGraph cuda_graph = CudaGraph::kOff;
  /// Called when a step runs out of memory with one row at a time. Frees memory that can be recomputed (the cache of a
  /// frozen encoder) and returns whether any was freed.
  std::function<bool()> release_memory = nullptr;
  /// Called in each step, once for each player, when its gradients are reduced and unscaled and not yet clipped; those
  /// of replica 0 may be read. `player` is empty without players. Not called for a step in which nothing counts. An
  /// exception ends the step before the update. Such steps are not captured. Not with sharding.
  std::function<void(std::string_view player)> on_gradients = nullptr;
  /// Makes what records and replays steps in place of CUDA graphs, for any device. Tests set it.
  std::function<std::unique_ptr<detail::GraphBackend>()> graph_backend = nullptr;
};

}  // namespace trainkit
