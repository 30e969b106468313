#include "trainkit/train/step_memory.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/device/gpu_operations.h"
#include "core/machine/allocation_guard.h"
#include "core/tensors/recorded.h"
#include "distributed/replicas/planned_rank.h"
#include "distributed/replicas/replica_tools.h"
#include "distributed/shards/gradient_hook.h"
#include "memory/memory_recorder.h"
#include "memory/shape_operations.h"
#include "train/planning/gpu_libraries.h"
#include "train/planning/step_flops.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/core/status.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/train_step.h"

namespace trainkit {
namespace {

/// Samples rows 0, 1, 2, ..., and starts again after the last one.
class RepeatingSampler final : public Sampler {
 public:
  RepeatingSampler(int64_t rows, int64_t draws) : rows_(rows), draws_(draws) {}
  int64_t size() const override { return draws_; }
  void fill(int64_t, int64_t begin, std::span<int64_t> out) const override {
    for (int64_t& row : out) row = begin++ % rows_;
  }

 private:
  int64_t rows_, draws_;
};

absl::StatusOr<Batch> read_batch(const std::shared_ptr<const Dataset>& dataset, int64_t rows) {
  if (dataset->size() < 1) return absl::InvalidArgumentError("the data set has no rows");
  const RepeatingSampler order(dataset->size(), std::max(rows, dataset->size()));  // replacements come from all rows
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader,
                            Prefetcher::create(dataset, order, {.batch_size = rows, .on_error = OnError::kReplace}));
  TRAINKIT_ASSIGN_OR_RETURN(std::optional<Batch> batch, loader->next());
  if (!batch) return absl::InvalidArgumentError("the data set has no readable row");
  return *std::move(batch);
}

Batch copy_of(const Batch& batch) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& tensor : batch.tensors()) tensors.push_back(tensor.clone());
  return Batch(std::make_shared<const std::vector<FieldSpec>>(batch.fields()), std::move(tensors));
}

/// Restores LibTorch's default generators at the end of the scope.
class GeneratorGuard {
 public:
  GeneratorGuard() : state_(default_generator_state()) {}
  ~GeneratorGuard() { load_default_generator_state(state_).IgnoreError(); }  // cannot fail: same generators
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  StateDict state_;
};

/// Fills the model's caches as in the first step of a run.
std::vector<at::Tensor> fill_caches(const StepRecipe& recipe, torch::nn::Module& model) {
  if (!recipe.fill_caches) return {};
  if (recipe.step.precision == Precision::kFp32) return recipe.fill_caches(model);
  const AutocastGuard autocast(at::kCPU, at::kBFloat16);
  return recipe.fill_caches(model);
}

void synchronize(at::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(std::max<c10::DeviceIndex>(device.index(), 0));
}

/// Returns the device allocator's cached memory at the end of the scope.
class EmptyCacheGuard {
 public:
  explicit EmptyCacheGuard(at::Device device) : device_(device) {}
  ~EmptyCacheGuard() {
    if (!device_.is_cpu()) at::getDeviceAllocator(device_.type())->emptyCache();
  }
  EmptyCacheGuard(const EmptyCacheGuard&) = delete;
  EmptyCacheGuard& operator=(const EmptyCacheGuard&) = delete;

 private:
  at::Device device_;
};

/// Streams and pools whose memory LibTorch's CUDA allocator keeps apart.
enum Stream : int32_t {
  kDefaultStream,
  kCopyStream,   // of the loader
  kGraphStream,  // eager steps before the capture
  kGraphPool
};

constexpr int64_t kMetricBytes = 4;

TrainStepOptions step_options(const StepRecipe& recipe, int64_t micro_batches) {
  TrainStepOptions options = recipe.step;
  options.grad_accum_steps = micro_batches;
  options.cuda_graph = CudaGraph::kOff;  // on the CPU
  if (options.precision == Precision::kFp16) options.precision = Precision::kBf16;
  if (recipe.keeps_gradients) options.zero_grad_set_to_none = false;
  return options;
}

/// Makes the gradients views of new buckets: the first one with at least `first_bytes`, the others with `bucket_bytes`.
/// Frees the buckets of the last call: after the new ones have its gradients if they are `kept`, otherwise before.
void put_gradients_in_buckets(const std::vector<at::Tensor>& parameters, int64_t first_bytes, int64_t bucket_bytes,
                              bool kept) {
  std::vector<at::Tensor> old;
  old.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) old.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
  if (!kept) old.clear();
  std::vector<at::Tensor> some;
  int64_t numbers = 0, limit = first_bytes;
  const auto close = [&] {
    if (some.empty()) return;
    const at::Tensor bucket = at::zeros({numbers}, some.front().options().requires_grad(false));
    int64_t begin = 0;
    for (const at::Tensor& parameter : some) {
      parameter.mutable_grad() = bucket.narrow(0, begin, parameter.numel()).view(parameter.sizes());
      begin += parameter.numel();
    }
    some.clear();
    numbers = 0;
    limit = bucket_bytes;
  };
  for (const at::Tensor& parameter : parameters) {
    if (!some.empty() && some.front().scalar_type() != parameter.scalar_type()) close();
    some.push_back(parameter);
    numbers += parameter.numel();
    if (numbers * parameter.element_size() >= limit) close();
  }
  close();
}

/// The parameters of a model that receive dense gradients, each once, and the order in which backward computes these.
class GradientOrder {
 public:
  explicit GradientOrder(const torch::nn::Module& model) : parameters_(detail::trained_parameters(model)) {
    for (const auto& [name, sparse] : detail::sparse_parameters(model)) {
      std::erase_if(parameters_, [&sparse = sparse](const at::Tensor& parameter) { return parameter.is_same(sparse); });
    }
    for (const at::Tensor& parameter : parameters_) {
      hooks_.emplace_back(parameter, [this, parameter] { order_.push_back(parameter); });
    }
  }
  GradientOrder(const GradientOrder&) = delete;
  GradientOrder& operator=(const GradientOrder&) = delete;

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// Forgets earlier passes.
  void restart() { order_.clear(); }
  /// The order of the first pass since then.
  std::vector<at::Tensor> of_first_pass() const {
    return {order_.begin(), order_.begin() + static_cast<int64_t>(std::min(order_.size(), parameters_.size()))};
  }

 private:
  std::vector<at::Tensor> parameters_, order_;
  std::vector<detail::GradientHook> hooks_;
};

/// The devices of a recorded step: one, or one rank of those that divide the training state.
absl::StatusOr<std::unique_ptr<DeviceReplicator>> recorded_devices(const StepRecipe& recipe, MemoryRecorder& recorder) {
  DeviceReplicatorOptions options{.strategy = Strategy::kSingle, .device = at::kCPU};
  if (recipe.sharding == Sharding::kNone) return DeviceReplicator::create(recipe.make_model, options);
  options.sharding = recipe.sharding;
  return std::make_unique<detail::PlannedRank>(recipe.make_model(), options, recipe.ranks,
                                               [&recorder] { recorder.empty_cache(); });
}

/// Wraps the recipe's loss: forward while it runs, backward after it.
LossFunction watched_loss(const StepRecipe& recipe, MemoryRecorder& recorder, detail::LibraryWatch& libraries) {
  return [&](torch::nn::Module& module, const Batch& batch) {
    recorder.enter(MemoryClass::kActivations);
    libraries.set_backward(false);
    LossOutput output = recipe.loss(module, batch);
    recorder.enter(MemoryClass::kActivations);
    libraries.set_backward(true);
    return output;
  };
}

std::vector<Batch> record_batches(MemoryRecorder& recorder, const Batch& rows, Stream stream, int64_t count) {
  const detail::ComputeValues compute;
  recorder.enter(MemoryClass::kBatch);
  recorder.set_stream(stream);
  std::vector<Batch> batches;
  for (int64_t i = 0; i < count; ++i) {
    batches.push_back(copy_of(rows));
    for (const at::Tensor& tensor : batches.back().tensors()) recorder.set_known(tensor, true);
  }
  return batches;
}

/// Puts all gradients in one bucket, as a Reducer does before it knows their order. Null if it has none.
std::unique_ptr<GradientOrder> record_first_bucket(const StepRecipe& recipe, const torch::nn::Module& model,
                                                   MemoryRecorder& recorder) {
  if (!recipe.keeps_gradients || recipe.sharding != Sharding::kNone) return nullptr;
  constexpr int64_t kAllBytes = std::numeric_limits<int64_t>::max();
  auto order = std::make_unique<GradientOrder>(model);
  recorder.enter(MemoryClass::kGradients);
  put_gradients_in_buckets(order->parameters(), kAllBytes, kAllBytes, /*kept=*/false);
  return order;
}

void assign_shards(const detail::ParameterShards* shards, const torch::nn::Module& model, MemoryRecorder& recorder) {
  if (!shards) return;
  for (const at::Tensor& parameter : model.parameters()) recorder.assign(parameter, MemoryClass::kWeights);
  for (const at::Tensor& memory : shards->reduction().memory()) recorder.assign(memory, MemoryClass::kGradients);
}

/// Returns whether all further steps run like the last one: eagerly, or by a graph. False while steps are traced before
/// a capture.
bool is_steady_state(const TrainStep& step) { return !step.uses_graphs() || step.graph_steps() > 0; }

// Note [Recording a step]
// ~~~~~~~~~~~~~~~~~~~~~~~
// Nothing is computed (Note [Shapes without values]), unless an operation is refused, since it reads values for control
// flow or sizes or makes copies that depend on the processor: the step is then recorded again, with real values.
//
// A step on the CPU allocates the same tensors as one on a GPU, so its allocations predict the GPU's memory. The
// recording imitates the differences, in the order in which they occur in a run:
// - Streams. LibTorch's CUDA allocator does not reuse a cached block on another stream. set_stream() tags the
//   allocations: batches come from the loader's copy stream, eager steps before a capture use the graph's stream, the
//   captured step the graph's pool.
// - Capture. Before the last step the batches are copied into the graph's inputs and the allocator's cache is
//   emptied.
// - Libraries. LibraryWatch adds the workspaces of cuBLAS and sets the temporary memory of CPU convolutions apart.
// - Ranks. Gradients are views of the Reducer's buckets: of one at first, of buckets in the order of backward from the
//   last micro-batch of the second step on (ReducerBuckets::arrange). The first one is freed before, unless it has
//   the gradients of earlier micro-batches. With Sharding the parameters are divided as in a run, by PlannedRank.
// Two steps are recorded, since the optimizer allocates its state in the first one, and three if ranks capture the step
// after the Reducer has arranged its buckets. Gradients are assigned to their
// class after each micro-batch, because the CPU allocates them among the activations.

/// See Note [Recording a step].
absl::StatusOr<MemoryTrace> record(const StepRecipe& recipe, const Batch& rows, int64_t micro_batches,
                                   bool computes) try {
  DeviceReplicatorOptions buckets;
  if (recipe.configure_devices) recipe.configure_devices(buckets);
  MemoryRecorder recorder(MemoryClass::kWeights, /*keep_trace=*/true,
                          computes ? RecordedMemory::kReal : RecordedMemory::kUntouched);
  std::optional<detail::ShapesOnly> shapes;
  if (!computes) shapes.emplace(recorder);
  detail::recorded(detail::kRecording, {}, [] { return at::Tensor(); });
  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, recorded_devices(recipe, recorder));
  const std::shared_ptr<torch::nn::Module>& model = devices->module();
  for (const at::Tensor& parameter : model->parameters()) recorder.set_known(parameter, false);
  const int steps_run = recipe.keeps_gradients && recipe.captures_graph ? 3 : 2;  // the last one is the steady state
  const std::unique_ptr<GradientOrder> order = record_first_bucket(recipe, *model, recorder);
  recorder.enter(MemoryClass::kCache);
  const at::Tensor cache = recipe.cache_bytes > 0 ? at::empty({recipe.cache_bytes}, at::kByte) : at::Tensor();
  recorder.enter(MemoryClass::kOptimizer);
  const std::unique_ptr<Optimizer> optimizer = recipe.make_optimizer();
  TrainStep step(*devices, *optimizer, step_options(recipe, micro_batches));
  assign_shards(detail::strategy_of(*devices).shards(), *model, recorder);
  if (recipe.schedule_bytes > 0) recorder.add(recipe.schedule_bytes, MemoryClass::kOptimizer);
  recorder.enter(MemoryClass::kActivations);
  detail::LibraryWatch libraries(recorder, recipe.libraries, recipe.for_gpu);
  const Stream steps = recipe.captures_graph ? kGraphStream : kDefaultStream;
  recorder.set_stream(steps);
  const std::vector<at::Tensor> caches = fill_caches(recipe, *model);
  for (const at::Tensor& kept : caches) recorder.assign(kept, MemoryClass::kCache);
  const std::vector<Batch> batches = record_batches(recorder, rows, kCopyStream, recipe.live_batches);
  std::vector<Batch> inputs;  // of the graph
  recorder.set_stream(steps);
  const LossFunction loss = watched_loss(recipe, recorder, libraries);
  for (int i = 0; i < steps_run; ++i) {
    if (recipe.captures_graph && i + 1 == steps_run) {
      recorder.add(kMetricBytes, MemoryClass::kActivations);  // metrics of the last eager step, read later
      inputs = record_batches(recorder, rows, kDefaultStream, micro_batches);
      recorder.empty_cache();
      recorder.set_stream(kGraphPool);
    }
    for (int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      if (order && micro_batch == micro_batches - 1 && i == 0) order->restart();
      if (order && micro_batch == micro_batches - 1 && i == 1) {
        recorder.enter(MemoryClass::kGradients);
        put_gradients_in_buckets(order->of_first_pass(), buckets.first_bucket_bytes, buckets.bucket_bytes,
                                 /*kept=*/micro_batches > 1);
        recorder.enter(MemoryClass::kActivations);
      }
      step.accumulate(batches.front(), loss);
      libraries.set_backward(false);
      for (const at::Tensor& parameter : model->parameters()) {
        recorder.assign(parameter.grad(), MemoryClass::kGradients);
      }
    }
    recorder.enter(MemoryClass::kActivations);
    step.finish();
  }
  return recorder.trace();
} catch (...) {
  return status_from_current_exception();
}

}  // namespace

absl::StatusOr<MemoryTrace> record_step_memory(const StepRecipe& recipe, int64_t batch_size,
                                               int64_t micro_batches) try {
  TORCH_CHECK_VALUE(batch_size >= 1 && micro_batches >= 1, "a step of ", micro_batches, " micro-batches of ",
                    batch_size, " rows");
  const detail::AllocationGuard allocation_guard;
  const GeneratorGuard generator_guard;
  const detail::GpuOperations operations(recipe.for_gpu, recipe.has_gpu_kernels);
  TRAINKIT_ASSIGN_OR_RETURN(const Batch rows, read_batch(recipe.dataset, batch_size));
  auto trace = record(recipe, rows, micro_batches, /*computes=*/false);
  if (!detail::ShapesOnly::was_refused()) return trace;
  trace = record(recipe, rows, micro_batches, /*computes=*/true);
  if (trace.ok()) trace->is_computed = true;
  return trace;
} catch (...) {
  return status_from_current_exception();
}

absl::StatusOr<double> time_step(const StepRecipe& recipe, at::Device device, int64_t batch_size,
                                 int64_t micro_batches) try {
  constexpr int kTimed = 3, kMostWarmUps = 20;
  TORCH_CHECK_VALUE(batch_size >= 1 && micro_batches >= 1, "a step of ", micro_batches, " micro-batches of ",
                    batch_size, " rows");
  const detail::AllocationGuard allocation_guard;
  const GeneratorGuard generator_guard;
  const EmptyCacheGuard empty_cache_guard(device);
  TRAINKIT_ASSIGN_OR_RETURN(const Batch rows, read_batch(recipe.dataset, batch_size));
  TRAINKIT_ASSIGN_OR_RETURN(
      const auto devices,
      DeviceReplicator::create(recipe.make_model, {.strategy = Strategy::kSingle, .device = device}));
  const std::unique_ptr<Optimizer> optimizer = recipe.make_optimizer();
  TrainStepOptions options = recipe.step;
  options.grad_accum_steps = micro_batches;
  TrainStep step(*devices, *optimizer, options);
  const Batch there = device.is_cpu() ? rows : rows.to(device);
  double fastest = std::numeric_limits<double>::infinity();
  int timed = 0;
  for (int done = 0; timed < kTimed; ++done) {
    const bool is_warm = done == kMostWarmUps || (done > 0 && is_steady_state(step));
    synchronize(device);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) step.accumulate(there, recipe.loss);
    step.finish();
    if (step.split() > 1) return absl::ResourceExhaustedError("the step fits only if its batch is split");
    synchronize(device);
    if (!is_warm && timed == 0) continue;
    fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    ++timed;
  }
  return fastest;
} catch (...) {
  return status_from_current_exception();
}

}  // namespace trainkit
