#include "trainkit/app/memory_plan.h"

#include <ATen/DeviceAccelerator.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "app/plan/given_memory.h"
#include "app/plan/memory_ladder.h"
#include "core/device/gpu_kernel_support.h"
#include "core/machine/allocation_guard.h"
#include "core/machine/host_memory.h"
#include "train/planning/gpu_libraries.h"
#include "train/planning/step_flops.h"
#include "train/run/run_state.h"
#include "trainkit/app/run_folder.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/weights.h"

namespace trainkit {
namespace {

constexpr int64_t kLargestCpuBatch = 64;

/// Replicas of this machine, which share its memory.
int64_t replicas_here(const MachineInfo& machine, const Placement& placement) {
  return static_cast<int64_t>(placement.devices.size()) * std::max<int64_t>(machine.local_ranks, 1);
}

/// Returns the memory that a device has free for the run.
int64_t free_memory(const MachineInfo& machine, const Placement& placement) {
  if (!placement.device().is_cpu()) {
    int64_t least = 0;
    for (const at::Device device : placement.devices) {
      const auto index = std::max<c10::DeviceIndex>(device.index(), 0);
      const auto bytes = static_cast<int64_t>(at::accelerator::getMemoryInfo(index).first);
      least = least == 0 ? bytes : std::min(least, bytes);
    }
    return least;
  }
  return host_memory().available_bytes / replicas_here(machine, placement);
}

/// Returns the global batch that the run must keep; 0 if there is none.
absl::StatusOr<int64_t> global_batch(const RunOptions& run) {
  if (run.global_batch_size) return *run.global_batch_size;
  if (run.resume.empty()) return 0;
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath found, resumed_checkpoint(run));
  TRAINKIT_ASSIGN_OR_RETURN(const StateDict state, load_checkpoint_state(found));
  return saved_shape(state).global_batch_size;
}

absl::StatusOr<BatchSizePlannerOptions> planner_options(const ConfigParser& parser, const RunOptions& run,
                                                        const MachineInfo& machine, const StepRecipe& recipe,
                                                        const Placement& placement) {
  BatchSizePlannerOptions options;
  TRAINKIT_ASSIGN_OR_RETURN(options.device_bytes, detail::given_memory(parser, run));
  const bool for_gpu = options.device_bytes > 0 || !placement.device().is_cpu();
  if (options.device_bytes == 0) options.device_bytes = free_memory(machine, placement);
  options.reserve_bytes = for_gpu ? kCudaReserveBytes : 0;
  if (parser.is_given("grad_accum_steps")) options.grad_accum_steps = run.grad_accum_steps;
  options.devices = run.plan_devices > 0 ? run.plan_devices : placement.batch.replicas;
  TRAINKIT_ASSIGN_OR_RETURN(options.global_batch_size, global_batch(run));
  const int64_t rows = std::max<int64_t>(1, recipe.dataset->size() / (options.devices * options.grad_accum_steps));
  options.max_batch_size = std::min(for_gpu ? options.max_batch_size : kLargestCpuBatch, rows);
  return options;
}

/// Returns the bytes of the table that LRScheduler keeps on a device, for at least 4096 and at most 2^20 steps.
int64_t schedule_bytes(const RunOptions& run, const StepRecipe& recipe, const Placement& placement) {
  const int64_t rows = std::max<int64_t>(1, placement.batch.global_batch_size());
  const int64_t by_epochs = (recipe.dataset->size() + rows - 1) / rows * run.epochs;
  const int64_t steps = run.max_steps > 0 ? std::min(run.max_steps, by_epochs) : by_epochs;
  return std::clamp<int64_t>(steps + 2, 4096, 1 << 20) * static_cast<int64_t>(sizeof(double));
}

/// Sets the parts of the recipe that follow from the flags.
void fill_in(StepRecipe& recipe, const RunOptions& run, const MachineInfo& machine, const Placement& placement,
             bool for_gpu, int64_t devices) {
  recipe.step.precision = resolve_precision(run, placement.device());
  recipe.step.grad_clip = run.grad_clip;
  recipe.step.ema_decay = run.ema;
  recipe.step.cuda_graph = placement.batch.replicas == 1 ? run.cuda_graph : CudaGraph::kOff;
  const int64_t slots = resolve_num_workers(run, placement, machine) * run.prefetch_factor.value.value_or(2);
  recipe.for_gpu = for_gpu;
  if (placement.device().is_cuda()) recipe.has_gpu_kernels = has_gpu_kernels(placement.device());
  recipe.libraries = detail::gpu_libraries(placement.device());
  recipe.captures_graph = for_gpu && run.cuda_graph != CudaGraph::kOff;
  const bool counts_on_device = recipe.captures_graph || recipe.step.precision == Precision::kFp16;
  if (for_gpu && counts_on_device) recipe.schedule_bytes = schedule_bytes(run, recipe, placement);
  recipe.live_batches = for_gpu ? 2 : std::max<int64_t>(2, slots);  // the loader's ring is in host memory
  recipe.keeps_gradients |= placement.strategy == Strategy::kDistributed;
  recipe.sharding = devices > 1 ? run.shard : Sharding::kNone;
  recipe.ranks = devices;
}

/// `computed_seconds` becomes the seconds of the recordings that computed the step; it may be null.
BatchSizePlanner::Record recorder(std::shared_ptr<const StepRecipe> recipe, std::shared_ptr<double> computed_seconds) {
  return [=](int64_t rows, int64_t micro_batches) {
    const auto start = std::chrono::steady_clock::now();
    auto trace = record_step_memory(*recipe, rows, micro_batches);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (computed_seconds && trace.ok() && trace->is_computed) *computed_seconds += seconds.count();
    return trace;
  };
}

absl::Status nothing_fits(const MemoryPlan& memory) {
  return to_status({.exit_code = ExitCode::kOutOfMemory,
                    .id = "memory.plan",
                    .field = "batch_size",
                    .problem = "not even one row at a time fits into the memory of a device",
                    .got = format_size(memory.plan.memory.device.allocated_bytes),
                    .expected = format_size(memory.options.device_bytes) + " at most",
                    .hint = memory.sharding_advice.empty() ? "use a smaller model or a device with more memory"
                                                           : memory.sharding_advice});
}

/// Whether the plan is for the CPU, whose memory Linux grants before it exists. See planner_options.
bool is_host(const BatchSizePlannerOptions& options) { return options.reserve_bytes == 0; }

/// Refuses a step that this machine has not enough memory for. Linux grants the memory and kills the process when it is
/// used. On a GPU, which says no, the run makes its steps smaller instead.
absl::Status check_host_memory(const MachineInfo& machine, const Placement& placement, const MemoryPlan& memory) {
  if (!is_host(memory.options) || !memory.known() || memory.plan.fits) return absl::OkStatus();
  const int64_t needed = memory.plan.memory.peak.total();
  const int64_t swap = host_memory().free_swap_bytes / replicas_here(machine, placement);
  if (needed <= memory.options.device_bytes + swap) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kOutOfMemory,
                    .id = "memory.plan",
                    .field = "batch_size",
                    .problem = fmt::format("a step of {} rows needs more memory than is free", memory.plan.batch_size),
                    .got = format_size(needed),
                    .expected = format_size(memory.options.device_bytes + swap) + " at most",
                    .hint = "use --batch_size auto or a smaller model; --no-plan_memory trains without this check"});
}

MemoryBytes largest_of(const MemoryTrace& trace) {
  MemoryBytes now, largest;
  for (const int32_t event : trace.events) {
    if (event == MemoryTrace::kEmptyCache) continue;
    const MemoryTrace::Block& block = trace.blocks[static_cast<size_t>(std::abs(event) - 1)];
    now[block.kind] += event > 0 ? block.bytes : -block.bytes;
    largest[block.kind] = std::max(largest[block.kind], now[block.kind]);
  }
  return largest;
}

/// Sums the bytes of parameters and buffers by the first part of their names.
std::vector<std::pair<std::string, int64_t>> weight_bytes_of(const torch::nn::Module& model) {
  std::vector<std::pair<std::string, int64_t>> parts;
  for (const auto& [name, tensor] : named_tensors(model)) {
    const std::string part = name.substr(0, name.find('.'));
    auto known = std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.first == part; });
    if (known == parts.end()) known = parts.insert(known, {part, 0});  // buffers come after all parameters
    known->second += static_cast<int64_t>(tensor.nbytes());
  }
  return parts;
}

/// Runs a few steps of the plan on the device. If memory runs out, reduces the batch if the plan may choose it, else
/// marks the plan as not fitting.
absl::Status try_plan(const StepRecipe& recipe, at::Device device, bool chooses, BatchSizePlanner& planner,
                      MemoryPlan& memory) {
  int64_t timed_rows = 0;
  const auto attempt = [&](int64_t rows, int64_t micro_batches) -> absl::Status {
    TRAINKIT_ASSIGN_OR_RETURN(memory.step_seconds, time_step(recipe, device, rows, micro_batches));
    timed_rows = rows;
    return absl::OkStatus();
  };
  if (!chooses) {
    absl::Status ran = attempt(memory.plan.batch_size, memory.plan.grad_accum_steps);
    if (!ran.ok() && ran.code() != absl::StatusCode::kResourceExhausted) return ran;
    memory.plan.fits = ran.ok();
  } else {
    TRAINKIT_ASSIGN_OR_RETURN(memory.plan, planner.confirm(memory.plan, attempt));
  }
  if (timed_rows != memory.plan.batch_size) {  // the last attempt used another batch
    memory.step_seconds = 0;
    if (memory.plan.fits) TRAINKIT_RETURN_IF_ERROR(attempt(memory.plan.batch_size, memory.plan.grad_accum_steps));
  }
  memory.timed_on = device.is_cpu() ? "this processor" : device.str();
  return absl::OkStatus();
}

absl::StatusOr<MemoryPlan> plan_recipe(const RunOptions& run, const StepRecipe& recipe, const Placement& placement,
                                       const BatchSizePlannerOptions& options,
                                       const std::shared_ptr<double>& computed_seconds) {
  const bool chooses = run.batch_size.is_auto();
  MemoryPlan memory;
  memory.options = options;
  memory.plan.batch_size = placement.batch.batch_size;
  memory.plan.devices = options.devices;
  memory.plan.grad_accum_steps = placement.batch.grad_accum_steps;
  const bool must = chooses || run.measure || recipe.choose_segments;
  if (!must && !run.plan_memory) {
    memory.unavailable = "--no-plan_memory";
    return memory;
  }
  const auto shared = std::make_shared<const StepRecipe>(recipe);
  const bool on_host = is_host(options);
  TRAINKIT_ASSIGN_OR_RETURN(auto planner, BatchSizePlanner::create(recorder(shared, computed_seconds), options));
  // A batch has at most the rows of the data.
  const int64_t share = (recipe.dataset->size() + options.devices - 1) / options.devices;
  const int64_t rows = on_host ? std::min(memory.plan.batch_size, share) : memory.plan.batch_size;
  auto plan = chooses ? planner.plan() : planner.describe(rows, memory.plan.grad_accum_steps);
  if (!plan.ok()) {
    const absl::StatusCode code = plan.status().code();
    const bool is_about_run = code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kDataLoss;
    const bool can_do_without = code == absl::StatusCode::kFailedPrecondition || (is_about_run && !chooses);
    if (!can_do_without || (on_host && detail::is_refused_memory(plan.status()))) return plan.status();
    memory.unavailable = std::string(plan.status().message());
    return memory;
  }
  memory.plan = *std::move(plan);
  TRAINKIT_ASSIGN_OR_RETURN(const MemoryEstimate estimate, planner.estimate(memory.plan.grad_accum_steps));
  memory.largest = largest_of(estimate.trace(memory.plan.batch_size));
  memory.check_error = estimate.check_error();
  memory.check_batch_size = estimate.check_batch_size();
  const bool tries = run.measure || (chooses && run.gpu_memory.empty() && !placement.device().is_cpu());
  if (tries) TRAINKIT_RETURN_IF_ERROR(try_plan(*shared, placement.device(), chooses, planner, memory));
  memory.ladder = [planner = std::move(planner), shared, memory] {
    return detail::memory_ladder(planner, *shared, memory);
  };
  return memory;
}

/// Adds what `trainkit plan` and `trainkit scale` compute with: weights, rows, and the operations per row.
absl::Status add_facts(const StepRecipe& recipe, MemoryPlan& memory) {
  constexpr int64_t kCountedRows = 2;
  memory.weight_bytes = weight_bytes_of(*recipe.make_model());
  memory.rows = recipe.dataset->size();
  for (const FieldSpec& field : recipe.dataset->fields()) memory.row_bytes += field.row_bytes();
  TRAINKIT_ASSIGN_OR_RETURN(const double flops, count_step_flops(recipe, kCountedRows));
  memory.row_flops = flops / kCountedRows;
  return absl::OkStatus();
}

/// Returns what dividing the training state gives, if the batch needs less accumulation then; see sharding_advice.
absl::StatusOr<std::string> advise_sharding(const RunOptions& run, const StepRecipe& recipe, const MemoryPlan& memory) {
  const int64_t devices = memory.options.devices;
  const bool is_open = run.batch_size.is_auto() && memory.known() && devices > 1 && recipe.sharding == Sharding::kNone;
  if (!is_open || (memory.plan.fits && memory.plan.grad_accum_steps == 1)) return std::string();
  const BatchSizePlannerOptions& options = memory.options;
  for (const auto& [name, sharding] :
       {std::pair("optimizer", Sharding::kOptimizer), {"gradients", Sharding::kGradients}}) {
    StepRecipe other = recipe;
    other.sharding = sharding;
    other.ranks = devices;
    TRAINKIT_ASSIGN_OR_RETURN(
        auto planner,
        BatchSizePlanner::create(recorder(std::make_shared<const StepRecipe>(std::move(other)), nullptr), options));
    TRAINKIT_ASSIGN_OR_RETURN(const BatchSizePlan plan, planner.plan());
    const bool helps = plan.fits && (!memory.plan.fits || plan.grad_accum_steps < memory.plan.grad_accum_steps);
    if (!helps) continue;
    return fmt::format("with --shard {}{} {} rows per device x {} accumulated fit", name,
                       recipe.for_gpu ? "" : " (ddp)", plan.batch_size, plan.grad_accum_steps);
  }
  return std::string();
}

/// Makes the plan, on the first rank.
absl::StatusOr<MemoryPlan> plan_here(const RunOptions& run, const StepRecipe& recipe, const Placement& placement,
                                     const BatchSizePlannerOptions& options,
                                     const std::shared_ptr<double>& computed_seconds) {
  TRAINKIT_ASSIGN_OR_RETURN(MemoryPlan memory, plan_recipe(run, recipe, placement, options, computed_seconds));
  StepRecipe chosen = recipe;
  const int64_t most_segments = recipe.choose_segments ? recipe.most_segments : 1;
  for (int64_t segments = 2; segments <= most_segments && memory.known() && !memory.plan.fits; ++segments) {
    StepRecipe other = recipe;
    recipe.set_segments(other, segments);
    TRAINKIT_ASSIGN_OR_RETURN(MemoryPlan next, plan_recipe(run, other, placement, options, computed_seconds));
    const bool is_less = next.known() && next.plan.memory.peak.total() < memory.plan.memory.peak.total();
    if (!next.plan.fits && !is_less) continue;  // the inputs that are kept need more than was saved
    memory = std::move(next);
    memory.checkpoint_segments = segments;
    chosen = std::move(other);
  }
  TRAINKIT_ASSIGN_OR_RETURN(memory.sharding_advice, advise_sharding(run, chosen, memory));
  if (run.dry_run && memory.known()) TRAINKIT_RETURN_IF_ERROR(add_facts(chosen, memory));
  return memory;
}

void count_steps(const RunOptions& run, int64_t rows, MemoryPlan& memory) {
  // As training_loader: the rows of an epoch do not depend on the number of devices.
  const int64_t used = run.drop_last ? rows - rows % run.batch_size.value.value_or(memory.plan.batch_size) : rows;
  const int64_t step = memory.plan.global_batch_size();
  memory.steps_per_epoch = (used + step - 1) / step;
  memory.steps = memory.steps_per_epoch * run.epochs;
  if (run.max_steps > 0) memory.steps = std::min(memory.steps, run.max_steps);
}

/// Sends the first rank's choices to the other ranks.
absl::Status share(const Placement& placement, MemoryPlan& memory) {
  if (!placement.group) return absl::OkStatus();
  BatchSizePlan& plan = memory.plan;
  TRAINKIT_ASSIGN_OR_RETURN(const std::string text, placement.group->broadcast_text(
                                                        fmt::format("{} {} {}", plan.batch_size, plan.grad_accum_steps,
                                                                    memory.checkpoint_segments),
                                                        0, "the batch plan"));
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  if (words.size() == 3 && absl::SimpleAtoi(words[0], &plan.batch_size) &&
      absl::SimpleAtoi(words[1], &plan.grad_accum_steps) && absl::SimpleAtoi(words[2], &memory.checkpoint_segments)) {
    return absl::OkStatus();
  }
  return to_status({.exit_code = ExitCode::kDistributed,
                    .id = "dist.plan",
                    .problem = "the first rank sent no batch plan",
                    .got = text,
                    .expected = "three numbers"});
}

}  // namespace

absl::StatusOr<int64_t> detail::given_memory(const ConfigParser& parser, const RunOptions& run) {
  if (run.gpu_memory.empty()) return 0;
  const std::optional<int64_t> bytes = parse_size(run.gpu_memory);
  if (!bytes || *bytes < 1) return parser.invalid("gpu_memory", "not a size", "as in 24GiB, 24GB, 512MiB");
  if (*bytes < kLeastGpuMemory) {
    return parser.invalid("gpu_memory", "too small for a GPU", "at least 64MiB", "give a unit, such as 24GiB");
  }
  return *bytes;
}

absl::StatusOr<MemoryPlan> plan_memory(const ConfigParser& parser, RunOptions& run, const MachineInfo& machine,
                                       StepRecipe recipe, Placement& placement) {
  if (run.plan_devices > 0 && !run.dry_run) return parser.invalid("plan_devices", "needs --dry_run");
  TRAINKIT_ASSIGN_OR_RETURN(const BatchSizePlannerOptions options,
                            planner_options(parser, run, machine, recipe, placement));
  fill_in(recipe, run, machine, placement, options.reserve_bytes > 0, options.devices);
  MemoryPlan memory;
  memory.options = options;
  if (placement.is_first()) {
    const auto computed_seconds = std::make_shared<double>(0);
    TRAINKIT_ASSIGN_OR_RETURN(memory, plan_here(run, recipe, placement, options, computed_seconds));
    if (*computed_seconds > 1) {
      placement.warnings.push_back(fmt::format(
          "the memory plan took {:.3g} s: the step reads values of its tensors, as item() does, or has 16-bit "
          "convolutions on the CPU, so it was computed; --no-plan_memory skips the plan",
          *computed_seconds));
    }
    if (run.batch_size.is_auto() && memory.known() && !memory.plan.fits) return nothing_fits(memory);
    TRAINKIT_RETURN_IF_ERROR(check_host_memory(machine, placement, memory));
    count_steps(run, recipe.dataset->size(), memory);
  } else {
    memory.unavailable = "planned on the first rank";
  }
  if (!run.batch_size.is_auto() && !recipe.choose_segments) return memory;
  if (!memory.known() && placement.is_first()) return absl::FailedPreconditionError(memory.unavailable);
  TRAINKIT_RETURN_IF_ERROR(share(placement, memory));
  if (!run.batch_size.is_auto()) return memory;
  run.batch_size.value = memory.plan.batch_size;
  placement.batch.batch_size = memory.plan.batch_size;
  placement.batch.grad_accum_steps = memory.plan.grad_accum_steps;
  return memory;
}

}  // namespace trainkit
