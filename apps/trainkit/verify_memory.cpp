// Compares the predicted peak memory of a step with the peak that the device's allocator counts.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <cmath>
#include <map>

#include "core/device/gpu_kernel_support.h"
#include "train/planning/gpu_libraries.h"
#include "trainkit/app/app.h"
#include "trainkit/app/memory_plan.h"
#include "trainkit/app/run_options.h"
#include "trainkit/core/format.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/nn/transformer.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/trainer.h"
#include "trainkit/verify.h"

namespace trainkit::tool {
namespace {

/// Largest allowed error relative to the measured peak. On simulated devices the error is below 1 %.
constexpr double kMemoryBound = 0.05;
constexpr int64_t kStepLength = 32, kStepVocabulary = 16384, kStepRows = 8;

/// Returns a training step of a Transformer with 14.7 million parameters.
StepRecipe recipe_of_step() {
  const at::Tensor ids = at::randint(kStepVocabulary, {4 * kStepRows, kStepLength + 1}, at::kLong);
  return {.make_model =
              [] {
                return Transformer(TransformerConfig{.vocab_size = kStepVocabulary,
                                                     .block_size = kStepLength,
                                                     .n_layers = 2,
                                                     .n_heads = 8,
                                                     .hidden_dim = 512})
                    .ptr();
              },
          .make_optimizer = [] { return std::make_unique<AdamW>(); },
          .loss = make_loss_function([](Transformer& model, const Batch& batch) {
            return language_model_loss(model->forward(batch["x"]), batch["y"]);
          }),
          .dataset = std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{
              {"x", ids.slice(1, 0, kStepLength).contiguous()}, {"y", ids.slice(1, 1).contiguous()}})};
}

/// Plans the memory of the step with the code that the trainers use.
absl::StatusOr<MemoryPlan> plan_of(const StepRecipe& recipe, at::Device device, Precision precision) {
  RunOptions run;
  ConfigParser parser({.name = "trainkit doctor"});
  add_run_flags(parser, run);
  TRAINKIT_RETURN_IF_ERROR(parser
                               .parse({"--device", device.str(), "--precision", name_of(precision), "--batch_size",
                                       std::to_string(kStepRows), "--grad_clip", "0", "--dry_run"})
                               .status());
  Placement placement{.devices = {device}, .batch = {.batch_size = kStepRows}};
  return plan_memory(parser, run, MachineInfo::here(), recipe, placement);
}

/// Caches plan_of by precision and compute capability: the plan is the same for GPUs of one kind.
absl::StatusOr<MemoryPlan> shared_plan(const StepRecipe& recipe, at::Device device, Precision precision) {
  static std::map<std::pair<Precision, int>, MemoryPlan> known;
  const std::pair key(precision, device.is_cuda() ? trainkit::detail::compute_capability(device) : 0);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  TRAINKIT_ASSIGN_OR_RETURN(MemoryPlan plan, plan_of(recipe, device, precision));
  return known.insert_or_assign(key, std::move(plan)).first->second;
}

/// Frees the workspaces of earlier checks, which a plan counts, and resets the peak statistics. Returns the bytes still
/// allocated; 0 on the CPU. Waits for the device.
int64_t reset_memory(at::Device device) {
  if (device.is_cpu()) return 0;
  at::accelerator::synchronizeDevice(device.index());
  trainkit::detail::free_library_workspaces();
  auto* const allocator = at::getDeviceAllocator(device.type());
  allocator->emptyCache();
  allocator->resetPeakStats(device.index());
  return allocator->getDeviceStats(device.index()).allocated_bytes[0].current;
}

struct Peaks {
  int64_t predicted = 0, real = 0;
  double error() const { return static_cast<double>(predicted) / static_cast<double>(real) - 1; }
};

absl::StatusOr<Peaks> measure_peaks(const StepRecipe& recipe, const MemoryPlan& plan, at::Device device,
                                    Precision precision) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, DeviceReplicator::create(recipe.make_model, {.device = device}));
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader,
                            Prefetcher::create(recipe.dataset, SequentialSampler(recipe.dataset->size()),
                                               {.batch_size = kStepRows, .num_workers = 1, .device = device}));
  TRAINKIT_ASSIGN_OR_RETURN(
      auto trainer,
      Trainer::create(*devices, recipe.make_optimizer(),
                      {.max_epochs = 0, .max_steps = 2, .precision = precision, .predicted_memory = plan.predicted()}));
  TRAINKIT_ASSIGN_OR_RETURN(const TrainerResult result, trainer.fit(*loader, recipe.loss));
  return Peaks{result.predicted_memory_bytes, result.real_memory_bytes};
}

}  // namespace

Checked verify_memory(at::Device device) {
  torch::manual_seed(41);
  const StepRecipe recipe = recipe_of_step();
  std::string text;
  nlohmann::ordered_json value;
  bool passed = true;
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    const MemoryPlan plan = shared_plan(recipe, device, precision).value();
    if (!plan.known()) return {Checked::State::kSkipped, "no prediction: " + plan.unavailable};
    const int64_t left_before = reset_memory(device);
    Peaks peaks = measure_peaks(recipe, plan, device, precision).value();
    peaks.real -= left_before;
    passed = passed && std::abs(peaks.error()) <= kMemoryBound;
    text += fmt::format("{}{} {} predicted, {} real ({:+.1f}%)", text.empty() ? "" : ", ", name_of(precision),
                        format_size(peaks.predicted), format_size(peaks.real), 100 * peaks.error());
    value[name_of(precision)] = {{"predicted", peaks.predicted}, {"real", peaks.real}, {"error", peaks.error()}};
  }
  value["bound"] = kMemoryBound;
  return passed_if(passed, text + fmt::format("; bound {:g}%", 100 * kMemoryBound), value,
                   "use a smaller --batch_size than `auto` chooses, and send this report to the developers");
}

}  // namespace trainkit::tool
