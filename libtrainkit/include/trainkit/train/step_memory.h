#pragma once
/// The memory of a training step, recorded on the CPU before there is a run.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/data/dataset.h"
#include "trainkit/memory/memory_trace.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/train_step.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

/// Workspaces that libraries of a GPU keep in LibTorch's memory. LibTorch gives one to each thread that calls cuBLAS,
/// and on each stream: forward's and backward's are two.
struct GpuLibraries {
  /// 8.125 MiB; 32 MiB on a device of compute capability 9.0, or as CUBLAS_WORKSPACE_CONFIG says.
  int64_t cublas_bytes = int64_t{8320} << 10;
  /// Of cuBLASLt, which products with a bias take in addition.
  int64_t cublaslt_bytes = int64_t{1} << 20;
  /// Convolutions are cuDNN's, whose workspaces are not part of a plan; without it they are products of cuBLAS.
  bool has_cudnn = true;
};

/// What a training step is made of.
struct StepRecipe {
  /// A new model on the CPU: what DeviceReplicator::create is given.
  std::function<std::shared_ptr<torch::nn::Module>()> make_model;
  /// A new optimizer without parameters.
  std::function<std::unique_ptr<Optimizer>()> make_optimizer;
  LossFunction loss;
  /// Where rows come from: the first ones, again from the beginning where there are too few. Rows that cannot be read
  /// are replaced.
  std::shared_ptr<const Dataset> dataset;
  /// Precision (fp16 stands for bf16, whose sizes are the same and which the CPU has) and clipping.
  TrainStepOptions step = {};
  /// Batches that are on the device at once: the step's, and those that are copied ahead.
  int64_t live_batches = 1;
  /// What else stays on the device.
  int64_t cache_bytes = 0;
  /// For recordings: fills what a new model keeps on its device from step to step beside its weights (a frozen
  /// encoder's output), and returns it: of class kCache. What comes and goes meanwhile, and in the steps, should be as
  /// large as in a run; the values may be any.
  std::function<std::vector<at::Tensor>(torch::nn::Module&)> fill_caches = nullptr;
  /// The step will run on a GPU: its own kernels there are recorded with their tensors, not what is fused on the CPU.
  bool for_gpu = false;
  /// False for a GPU that our kernels were not compiled for: LibTorch's operations are recorded then.
  bool has_gpu_kernels = true;
  /// With for_gpu: its libraries, and whether steps become one CUDA graph, which has memory of its own.
  GpuLibraries libraries = {};
  bool captures_graph = false;
  /// Of the learning rates of all steps, where the optimizer counts them on the device: in a CUDA graph, and in fp16.
  int64_t schedule_bytes = 0;
  /// Gradients stay allocated from step to step, as in the buckets that several ranks reduce.
  bool keeps_gradients = false;

  /// For models that can compute activations again in backward (checkpoint_sequential): changes the recipe to so many
  /// segments, and their largest number. With choose_segments plan_memory takes the fewest with which the step fits.
  std::function<void(StepRecipe&, int64_t)> set_segments = nullptr;
  int64_t most_segments = 1;
  bool choose_segments = false;

  /// A flag that a user may give, and what it changes of the recipe.
  using Choice = std::pair<std::string, std::function<void(StepRecipe&)>>;
  /// Smaller models and inputs, {"--hidden_dim 128", ...}, and ways to do without a cache. For advice alone.
  std::vector<Choice> smaller = {};
  std::vector<Choice> without_cache = {};
};

/// Builds model and optimizer and takes two optimizer steps on the CPU, each of `micro_batches` micro-batches of
/// `batch_size` rows, and records all that they allocate. Leaves nothing behind: the model is thrown away, and
/// LibTorch's default generators are as they were. kInvalidArgument for a data set without rows; every exception of the
/// model, the loss or LibTorch, translated.
absl::StatusOr<MemoryTrace> record_step_memory(const StepRecipe& recipe, int64_t batch_size, int64_t micro_batches);

/// Seconds of such a step on `device`, in the recipe's own precision: the fastest of three. One step is left out before
/// them to warm up; where the recipe's step may be a CUDA graph, all steps before that. The copies of the rows and the
/// exchange of gradients with other devices are not part of it. Blocks until the device is done, and leaves nothing
/// behind either; what the device's allocator kept for later is given back. The same errors, and kResourceExhausted
/// where the device has no memory for it.
absl::StatusOr<double> time_step(const StepRecipe& recipe, at::Device device, int64_t batch_size,
                                 int64_t micro_batches);

}  // namespace trainkit
