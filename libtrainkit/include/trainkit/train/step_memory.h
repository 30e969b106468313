#pragma once
/// Records the memory of a training step on the CPU, before the run.

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
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/memory/memory_trace.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/step_options.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

namespace detail {
/// Whether LibTorch keeps the workspaces of cuBLAS: up to 2.14, and later with TORCH_CUBLAS_WORKSPACE_CACHE=1.
bool keeps_library_workspaces();
}  // namespace detail

/// Workspaces of CUDA libraries in LibTorch's memory.
struct GpuLibraries {
  /// True: LibTorch keeps one workspace per thread that calls cuBLAS and per stream; forward and backward use one each.
  /// False: each operation allocates its own and frees it at its end.
  bool keeps_workspaces = detail::keeps_library_workspaces();
  /// Workspace of cuBLAS. 8.125 MiB; 32 MiB on compute capability 9.0; or the value of CUBLAS_WORKSPACE_CONFIG.
  int64_t cublas_bytes = int64_t{8320} << 10;
  /// Workspace of cuBLASLt, used by matrix products with a bias; kept in addition to that of cuBLAS, or instead of it.
  int64_t cublaslt_bytes = int64_t{1} << 20;
  /// True if cuDNN computes convolutions; its workspaces are not part of a plan. Without cuDNN they are cuBLAS
  /// products.
  bool has_cudnn = true;
};

/// Parts of a training step.
struct StepRecipe {
  /// Builds a new model on the CPU, as for DeviceReplicator::create.
  std::function<std::shared_ptr<torch::nn::Module>()> make_model = nullptr;
  /// Builds a new optimizer without parameters.
  std::function<std::unique_ptr<Optimizer>()> make_optimizer = nullptr;
  LossFunction loss = nullptr;
  /// Changes the options of the replicas after the flags have set theirs: find_unused_parameters of a model with
  /// branches that some batches skip, share_weights, sizes of buckets. May be null.
  std::function<void(DeviceReplicatorOptions& options)> configure_devices = nullptr;
  /// Source of rows: the first ones, repeated if there are too few. Unreadable rows are replaced.
  std::shared_ptr<const Dataset> dataset = nullptr;
  /// Precision and clipping. fp16 is recorded as bf16, which has the same sizes and works on the CPU.
  TrainStepOptions step = {};
  /// Batches on the device at the same time: the one of the step and those copied ahead.
  int64_t live_batches = 1;
  /// Other bytes that stay on the device.
  int64_t cache_bytes = 0;
  /// Fills and returns the caches that the model keeps on its device between steps in addition to its weights (a frozen
  /// encoder's output). Their memory is counted as kCache. Temporary tensors, here and in the steps, should have the
  /// sizes of a run; values are arbitrary. For recordings only.
  std::function<std::vector<at::Tensor>(torch::nn::Module&)> fill_caches = nullptr;
  /// True if the step will run on a GPU: records the tensors of our GPU kernels, not those of the fused CPU kernels.
  bool for_gpu = false;
  /// False for a GPU that our kernels were not compiled for: LibTorch's operations are recorded instead.
  bool has_gpu_kernels = true;
  /// With for_gpu: its libraries, and whether steps become a CUDA graph, which has its own memory pool.
  GpuLibraries libraries = {};
  bool captures_graph = false;
  /// Bytes of the table of learning rates, where the optimizer counts steps on the device: in a CUDA graph and in fp16.
  int64_t schedule_bytes = 0;
  /// True if gradients stay allocated between steps, in the buckets that several ranks all-reduce.
  bool keeps_gradients = false;
  /// What `ranks` ranks divide among them; the recording is that of one rank. Replaces keeps_gradients.
  Sharding sharding = Sharding::kNone;
  int64_t ranks = 1;

  /// For models with activation checkpointing (checkpoint_sequential): sets the number of segments in a recipe, and the
  /// largest number. With choose_segments plan_memory selects the fewest segments with which the step fits.
  std::function<void(StepRecipe&, int64_t)> set_segments = nullptr;
  int64_t most_segments = 1;
  bool choose_segments = false;

  /// A flag for the user, and its effect on the recipe.
  using Choice = std::pair<std::string, std::function<void(StepRecipe&)>>;
  /// Suggestions for out-of-memory advice only: smaller models and inputs, {"--hidden_dim 128", ...}, and flags that
  /// disable a cache.
  std::vector<Choice> smaller = {};
  std::vector<Choice> without_cache = {};
};

/// Records all allocations of two optimizer steps on the CPU, each of `micro_batches` micro-batches of `batch_size`
/// rows, including those of a new model and optimizer. Frees the model afterwards and restores LibTorch's default
/// generators. Errors: kInvalidArgument for a data set without rows; every exception of the model, the loss or
/// LibTorch, translated.
absl::StatusOr<MemoryTrace> record_step_memory(const StepRecipe& recipe, int64_t batch_size, int64_t micro_batches);

/// Measures the seconds of such a step on `device` in the recipe's own precision: the fastest of three. One warm-up
/// step precedes them, or all eager steps before the capture if the step may become a CUDA graph. Excludes the copies
/// of the rows and the all-reduce with other devices.
///
/// Blocks until the device is done. Frees the model, and returns the device allocator's cached memory. Errors: as
/// above, and kResourceExhausted if the device has too little memory.
absl::StatusOr<double> time_step(const StepRecipe& recipe, at::Device device, int64_t batch_size,
                                 int64_t micro_batches);

}  // namespace trainkit
