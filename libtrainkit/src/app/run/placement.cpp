#include "trainkit/app/placement.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "core/device/gpu_kernel_support.h"
#include "core/machine/waiting_threads.h"
#include "train/run/training_source.h"
#include "trainkit/app/run_folder.h"
#include "trainkit/core/error.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/step_memory.h"

namespace trainkit {
namespace {

/// Turns an error into one of usage (exit code 2): a file that requests devices that this machine lacks is not faulty.
absl::Status as_usage_error(const absl::Status& status) {
  Error error = *error_of(status);
  error.exit_code = ExitCode::kUsage;
  return to_status(error, status.code());
}

/// Returns the devices that --use_multi_gpu, --gpu_ids and --parallel request; only `device` without these flags.
absl::StatusOr<std::vector<c10::Device>> requested_devices(const ConfigParser& parser, const RunOptions& o,
                                                           c10::Device device, const MachineInfo& machine) {
  const bool several_gpus = o.use_multi_gpu;
  if (!o.gpu_ids.empty() && !several_gpus && parser.is_default("use_multi_gpu")) {
    return parser.invalid("gpu_ids", "needs --use_multi_gpu", "", "for a single GPU use --device cuda:N");
  }
  const bool many = several_gpus || o.parallel > 1;
  if (many && device.is_cuda() && o.device != "auto" && o.device != "cuda") {
    return parser.invalid("device", "names one GPU, but several are requested", "auto or cuda",
                          "--gpu_ids selects GPUs");
  }
  if (several_gpus) {
    // With --device cpu the listed GPUs become as many logical replicas.
    if (o.device == "cpu" && !o.gpu_ids.empty()) return std::vector(o.gpu_ids.size(), device);
    if (device.is_cpu()) {
      return as_usage_error(
          parser.invalid("use_multi_gpu",
                         machine.cuda_devices > 0 ? "contradicts " + parser.source("device") : "no GPU on this machine",
                         "", "--device cpu --parallel N trains N logical replicas on the CPU"));
    }
    std::vector<c10::Device> gpus;
    for (const int id : o.gpu_ids) {
      if (id >= machine.cuda_devices) {
        return as_usage_error(
            parser.invalid("gpu_ids", "no GPU " + std::to_string(id), "0.." + std::to_string(machine.cuda_devices - 1),
                           "CUDA_VISIBLE_DEVICES selects the visible GPUs; trainkit doctor lists them"));
      }
      gpus.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(id));
    }
    for (int id = 0; o.gpu_ids.empty() && id < machine.cuda_devices; ++id) {
      gpus.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(id));
    }
    if (o.parallel > 1 && o.parallel != static_cast<int64_t>(gpus.size())) {
      return parser.invalid("parallel", "contradicts --use_multi_gpu", std::to_string(gpus.size()),
                            "give one of the two");
    }
    return gpus;
  }
  if (o.parallel == 1) return std::vector{device};
  if (device.is_cpu()) return std::vector(static_cast<size_t>(o.parallel), device);
  if (o.parallel > machine.cuda_devices) {
    return parser.invalid("parallel", "more devices than available",
                          "at most " + std::to_string(machine.cuda_devices) + " (visible GPUs)",
                          "--device cpu accepts any number, as logical replicas");
  }
  std::vector<c10::Device> gpus;
  for (int64_t id = 0; id < o.parallel; ++id) gpus.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(id));
  return gpus;
}

/// Returns the device of this rank, one of the requested devices.
absl::StatusOr<Placement> resolve_rank(const ConfigParser& parser, const RunOptions& o,
                                       const std::vector<c10::Device>& requested, const MachineInfo& machine) {
  if (o.parallel > 1 && o.parallel != machine.ranks) {
    return parser.invalid("parallel", "does not match the launcher's rank count", std::to_string(machine.ranks),
                          "omit --parallel under a launcher");
  }
  c10::Device device = requested.front();
  // With one visible GPU per rank (CUDA_VISIBLE_DEVICES), or one GPU named for the only rank here, there is no choice.
  const bool chosen = o.device != "auto" && o.device != "cuda";
  if (device.is_cuda() && !o.gpu_ids.empty() && o.use_multi_gpu) {
    if (machine.local_rank >= static_cast<int64_t>(requested.size())) {
      return parser.invalid("gpu_ids", "fewer GPUs than ranks on this machine",
                            std::to_string(machine.local_ranks) + " GPUs");
    }
    device = requested[static_cast<size_t>(machine.local_rank)];
  } else if (device.is_cuda() && machine.local_ranks > 1) {
    if (chosen) {
      return parser.invalid("device", "names one GPU for all ranks of this machine", "auto or cuda",
                            "each rank uses the GPU with its local rank");
    }
    if (machine.local_rank >= machine.cuda_devices && machine.cuda_devices > 1) {
      return to_status({.exit_code = ExitCode::kDistributed,
                        .id = "dist.env",
                        .field = "LOCAL_RANK",
                        .problem = "fewer GPUs than ranks on this machine",
                        .got = std::to_string(machine.local_rank),
                        .expected = "below " + std::to_string(machine.cuda_devices),
                        .hint = "start one rank per GPU, or give --device cpu"});
    }
    const int64_t index = machine.cuda_devices == 1 ? 0 : machine.local_rank;
    device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  }
  return Placement{.strategy = Strategy::kDistributed, .devices = {device}, .batch = {.replicas = machine.ranks}};
}

/// Settings that may differ between ranks: they change the speed of a rank, not its results.
constexpr std::array<std::string_view, 14> kPerRankSettings = {
    "num_workers", "prefetch_factor", "persistent_workers", "timeout",           "pin_memory",
    "monitor",     "device",          "use_tensorboard",    "use_wandb",         "gpu_ids",
    "overwrite",   "cudnn_benchmark", "dist_bind",          "dist_shared_memory"};

// Note [Joining the ranks]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// Ranks with different settings would exchange tensors of different sizes, or a different number of them, and hang
// until the timeout. The settings are therefore compared first, through the store and without a collective.
// compare_digest() names the setting that differs. Library versions are included, because kernels of different versions
// sum in different orders. Paths are excluded by ConfigParser::settings(), and kPerRankSettings by name. program.group
// is set as soon as the group exists: if the comparison fails, run_program() tells the others why this rank ends.

absl::Status join_ranks(const ConfigParser& parser, const RunOptions& run, ProgramState& program,
                        Placement& placement) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto launch, read_launch_environment());
  TORCH_CHECK(launch, "ddp needs a launcher: call check_run_options first");
  ProcessGroupOptions options{.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(run.dist_timeout),
                              .device = placement.device(),
                              .shared_memory = run.dist_shared_memory};
  if (run.dist_bind != "loopback") options.bind = run.dist_bind;
  TRAINKIT_ASSIGN_OR_RETURN(auto group, ProcessGroup::create(*launch, options));
  program.group = group;
  std::vector<DigestField> fields;
  for (auto& [name, version] : library_versions()) fields.push_back({"version of " + name, version});
  fields.push_back({"kind of device", placement.device().is_cpu() ? "cpu" : "cuda"});
  if (!run.resume.empty()) {  // before the settings, which a missing run folder changes
    const auto checkpoint = resumed_checkpoint(run);
    fields.push_back({"step of the checkpoint", checkpoint.ok() ? std::to_string(checkpoint->step) : "no checkpoint"});
  }
  for (auto& [name, value] : parser.settings()) {
    if (std::find(kPerRankSettings.begin(), kPerRankSettings.end(), name) == kPerRankSettings.end())
      fields.push_back({name, value});
  }
  placement.group = group;
  placement.warnings = launch->warnings;
  return group->compare_digest(fields);
}

/// Returns the global batch that a resumed run keeps because it had another number of devices; 0 if the flags decide.
absl::StatusOr<int64_t> kept_global_batch(const RunOptions& run, int64_t replicas) {
  if (run.resume.empty()) return 0;
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath found, resumed_checkpoint(run));
  TRAINKIT_ASSIGN_OR_RETURN(const StateDict state, load_checkpoint_state(found));
  const RunShape shape = saved_shape(state);
  if (shape.replicas == 0 || shape.replicas == replicas) return 0;
  if (run.global_batch_size && *run.global_batch_size != shape.global_batch_size) {
    return to_status({.exit_code = ExitCode::kDistributed,
                      .id = "dist.batch",
                      .field = "global_batch_size",
                      .problem = "a run resumed on another number of devices must keep its global batch",
                      .got = std::to_string(*run.global_batch_size),
                      .expected = std::to_string(shape.global_batch_size)},
                     absl::StatusCode::kInvalidArgument);
  }
  return shape.global_batch_size;
}

PrefetcherOptions loader_options(const RunOptions& run, const MachineInfo& machine, const Placement& placement) {
  const auto replicas = static_cast<int64_t>(placement.devices.size());
  // Several devices of one process copy their shares of a batch from the host.
  const at::Device target = replicas == 1 ? placement.device() : at::Device(at::kCPU);
  return {.batch_size = placement.batch.batch_size * replicas,
          .num_workers = resolve_num_workers(run, placement, machine),
          .prefetch_factor = static_cast<int>(run.prefetch_factor.value.value_or(2)),
          .adaptive_prefetch = run.prefetch_factor.is_auto(),
          .persistent_workers = run.persistent_workers,
          .drop_last = false,  // training_loader drops rows on all ranks alike
          .timeout = std::chrono::duration_cast<std::chrono::milliseconds>(run.timeout),
          .pin_memory = run.pin_memory,
          .device = target,
          .on_error = run.on_error,
          .max_bad_samples = run.max_bad_samples};
}

}  // namespace

int resolve_num_workers(const RunOptions& options, const Placement& placement, const MachineInfo& machine) {
  if (!options.num_workers.is_auto()) return static_cast<int>(*options.num_workers.value);
  const int ranks = static_cast<int>(std::max<int64_t>(machine.local_ranks, 1));
  return suggest_num_workers(static_cast<int>(placement.devices.size()) * ranks, ranks, machine.cpus);
}

int share_processors(const RunOptions& run, const Placement& placement, const MachineInfo& machine, ReadCost cost) {
  const int ranks = static_cast<int>(std::max<int64_t>(machine.local_ranks, 1));
  const int share = suggest_intra_op_threads(resolve_num_workers(run, placement, machine), cost, ranks);
  const int threads =
      run.threads.is_auto() ? std::min(at::get_num_threads(), share) : static_cast<int>(*run.threads.value);
  at::set_num_threads(threads);
  detail::let_waiting_threads_sleep();
  return threads;
}

absl::StatusOr<Placement> resolve_devices(const ConfigParser& parser, const RunOptions& options,
                                          const MachineInfo& machine) {
  TRAINKIT_ASSIGN_OR_RETURN(const c10::Device device, resolve_device(parser, options, machine));
  TRAINKIT_ASSIGN_OR_RETURN(auto requested, requested_devices(parser, options, device, machine));
  const bool launched = machine.ranks > 0;
  if (options.strategy == Strategy::kDistributed || (options.strategy == Strategy::kAuto && launched)) {
    if (!launched) {
      return parser.invalid(
          "strategy", "needs a launcher", "auto, single or dp",
          "trainkit launch --nproc_per_node N -- <program> ..., or torchrun --no-python, srun, mpirun");
    }
    return resolve_rank(parser, options, requested, machine);
  }
  if (machine.ranks > 1) {
    return parser.invalid(
        "strategy",
        "the launcher has started " + std::to_string(machine.ranks) + " ranks, which would all train the same model",
        "auto or ddp", "start the program without a launcher, or with one rank");
  }
  if (options.strategy == Strategy::kSingle && requested.size() > 1) {
    return parser.invalid("strategy", "contradicts the " + std::to_string(requested.size()) + " devices requested",
                          "auto or dp");
  }
  const bool parallel = options.strategy == Strategy::kDataParallel || requested.size() > 1;
  const auto replicas = static_cast<int64_t>(requested.size());
  return Placement{.strategy = parallel ? Strategy::kDataParallel : Strategy::kSingle,
                   .devices = std::move(requested),
                   .batch = {.replicas = replicas}};
}

absl::StatusOr<BatchPlan> resolve_batch(const ConfigParser& parser, const RunOptions& options, int64_t replicas,
                                        int64_t global_batch_size) {
  if (options.batch_size.is_auto()) return BatchPlan{1, replicas, options.grad_accum_steps};
  const int64_t rows = *options.batch_size.value;
  const bool from_flag = global_batch_size == 0 && options.global_batch_size;
  const int64_t global = from_flag ? *options.global_batch_size : global_batch_size;
  if (global == 0) return BatchPlan{rows, replicas, options.grad_accum_steps};
  if (global % replicas != 0) {
    return to_status({.exit_code = ExitCode::kDistributed,
                      .id = "dist.batch",
                      .field = "global_batch_size",
                      .problem = "is not divisible by the number of devices",
                      .got = std::to_string(global),
                      .expected = "a multiple of " + std::to_string(replicas) + " devices",
                      .hint = "choose a number of devices that divides it"},
                     absl::StatusCode::kInvalidArgument);
  }
  const int64_t share = global / replicas;
  const auto is_flag = [&](const char* name) { return parser.source(name).starts_with("-"); };
  if (from_flag && is_flag("global_batch_size") && is_flag("grad_accum_steps") &&
      share != rows * options.grad_accum_steps) {
    return parser.invalid("global_batch_size", "contradicts " + parser.source("grad_accum_steps"),
                          std::to_string(rows * replicas * options.grad_accum_steps), "give one of the two");
  }
  if (from_flag && replicas == 1 && parser.is_given("batch_size") && share % rows != 0) {
    return parser.invalid("global_batch_size", "not a multiple of batch_size", "a multiple of " + std::to_string(rows));
  }
  int64_t per_device = std::min(rows, share);
  while (share % per_device != 0) --per_device;
  return BatchPlan{per_device, replicas, share / per_device};
}

const char* name_of(Strategy strategy) {
  constexpr std::array<const char*, 4> kNames = {"auto", "single", "dp", "ddp"};
  return kNames.at(static_cast<size_t>(strategy));
}

absl::StatusOr<MachineInfo> launched_machine(const EnvironmentVariables& variables) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto launch, read_launch_environment(variables));
  MachineInfo machine = MachineInfo::here();
  if (launch) {
    machine.ranks = launch->world_size;
    machine.local_ranks = launch->local_world_size;
    machine.local_rank = launch->local_rank;
  }
  return machine;
}

absl::StatusOr<Placement> place_run(const ConfigParser& parser, const RunOptions& run, const MachineInfo& machine,
                                    ProgramState& program) {
  TRAINKIT_ASSIGN_OR_RETURN(Placement placement, resolve_devices(parser, run, machine));
  if (placement.strategy == Strategy::kDistributed) {
    TRAINKIT_RETURN_IF_ERROR(join_ranks(parser, run, program, placement));
  }
  for (const at::Device device : placement.devices) {
    if (!device.is_cuda() || !placement.is_first()) continue;  // other ranks print nothing
    const std::string warning = detail::missing_kernels_warning(device);
    if (!warning.empty()) placement.warnings.push_back(warning);
  }
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t global, kept_global_batch(run, placement.batch.replicas));
  TRAINKIT_ASSIGN_OR_RETURN(placement.batch, resolve_batch(parser, run, placement.batch.replicas, global));
  return placement;
}

absl::StatusOr<std::unique_ptr<Prefetcher>> training_loader(std::shared_ptr<const Dataset> dataset,
                                                            std::shared_ptr<const Sampler> order, const RunOptions& run,
                                                            const MachineInfo& machine, const Placement& placement) {
  auto share = std::make_shared<DistributedSampler>(
      std::move(order), DistributedSamplerOptions{.rank = placement.rank(),
                                                  .world_size = placement.ranks(),
                                                  .tail = UnevenTail::kPad,
                                                  .multiple_of = run.drop_last ? run.batch_size.value.value_or(1) : 1});
  return Prefetcher::create(std::move(dataset), std::shared_ptr<const Sampler>(std::move(share)),
                            loader_options(run, machine, placement));
}

absl::StatusOr<std::unique_ptr<Prefetcher>> evaluation_loader(std::shared_ptr<const Dataset> dataset,
                                                              const RunOptions& run, const MachineInfo& machine,
                                                              const Placement& placement) {
  auto order = std::make_shared<SequentialSampler>(dataset->size());
  auto share = std::make_shared<DistributedSampler>(
      std::shared_ptr<const Sampler>(std::move(order)),
      DistributedSamplerOptions{.rank = placement.rank(), .world_size = placement.ranks(), .tail = UnevenTail::kPad});
  PrefetcherOptions options = loader_options(run, machine, placement);
  options.persistent_workers = false;
  if (options.on_error == OnError::kReplace) options.on_error = OnError::kSkip;
  return Prefetcher::create(std::move(dataset), std::shared_ptr<const Sampler>(std::move(share)), options);
}

absl::Status compare_data(const Placement& placement,
                          std::initializer_list<std::pair<const char*, const Dataset*>> sets) {
  if (!placement.group) return absl::OkStatus();
  std::vector<DigestField> fields;
  for (const auto& [name, dataset] : sets) append_data_fields(name, *dataset, fields);
  return placement.group->compare_digest(fields);
}

DeviceReplicatorOptions replicator_options(const Placement& placement) {
  DeviceReplicatorOptions options{
      .strategy = placement.strategy, .device = placement.device(), .process_group = placement.group};
  if (placement.device().is_cpu()) {
    options.cpu_replicas = static_cast<int64_t>(placement.devices.size());
  } else {
    for (const at::Device gpu : placement.devices) options.gpu_ids.push_back(std::max<int64_t>(gpu.index(), 0));
  }
  return options;
}

DeviceReplicatorOptions replicator_options(const RunOptions& run, const Placement& placement,
                                           const StepRecipe& recipe) {
  constexpr int64_t kFewRows = 16;  // batch statistics of fewer rows are noisy
  DeviceReplicatorOptions options = replicator_options(placement);
  options.sync_batch_norm = run.sync_batchnorm.value_or(placement.batch.batch_size < kFewRows);
  options.gradient_compression = run.grad_compression;
  options.sharding = run.shard;
  if (recipe.configure_devices) recipe.configure_devices(options);
  return options;
}

}  // namespace trainkit
