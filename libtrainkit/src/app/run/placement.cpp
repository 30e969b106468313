#include "trainkit/app/placement.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "core/device/gpu_kernel_support.h"
#include "train/run/run_state.h"
#include "trainkit/app/app.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

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
  const DevicePlan& plan = placement.plan;
  TRAINKIT_ASSIGN_OR_RETURN(const auto launch, read_launch_environment());
  TORCH_CHECK(launch, "ddp needs a launcher: call check_run_options first");
  ProcessGroupOptions options{.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(run.dist_timeout),
                              .device = plan.devices.front(),
                              .shared_memory = run.dist_shared_memory};
  if (run.dist_bind != "loopback") options.bind = run.dist_bind;
  TRAINKIT_ASSIGN_OR_RETURN(auto group, ProcessGroup::create(*launch, options));
  program.group = group;
  std::vector<DigestField> fields;
  for (auto& [name, version] : library_versions()) fields.push_back({"version of " + name, version});
  fields.push_back({"kind of device", plan.devices.front().is_cpu() ? "cpu" : "cuda"});
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
  const auto on_error = run.on_error == "skip"      ? OnError::kSkip
                        : run.on_error == "replace" ? OnError::kReplace
                                                    : OnError::kFail;
  const auto replicas = static_cast<int64_t>(placement.plan.devices.size());
  // Several devices of one process copy their shares of a batch from the host.
  const at::Device target = replicas == 1 ? placement.device() : at::Device(at::kCPU);
  return {.batch_size = placement.batch.batch_size * replicas,
          .num_workers = resolve_num_workers(run, placement.plan, machine),
          .prefetch_factor = static_cast<int>(run.prefetch_factor.value.value_or(2)),
          .adaptive_prefetch = run.prefetch_factor.is_auto(),
          .persistent_workers = run.persistent_workers,
          .drop_last = false,  // training_loader drops rows on all ranks alike
          .timeout = std::chrono::duration_cast<std::chrono::milliseconds>(run.timeout),
          .pin_memory = run.pin_memory,
          .device = target,
          .on_error = on_error,
          .max_bad_samples = run.max_bad_samples};
}

}  // namespace

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
  Placement placement;
  TRAINKIT_ASSIGN_OR_RETURN(placement.plan, resolve_devices(parser, run, machine));
  if (placement.plan.strategy == "ddp") {
    TRAINKIT_RETURN_IF_ERROR(join_ranks(parser, run, program, placement));
  }
  for (const at::Device device : placement.plan.devices) {
    if (!device.is_cuda() || !placement.is_first()) continue;  // other ranks print nothing
    const std::string warning = detail::missing_kernels_warning(device);
    if (!warning.empty()) placement.warnings.push_back(warning);
  }
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t global, kept_global_batch(run, placement.plan.replicas));
  TRAINKIT_ASSIGN_OR_RETURN(placement.batch, resolve_batch(parser, run, placement.plan.replicas, global));
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

Sharding sharding_of(const RunOptions& run) {
  return run.shard == "optimizer"   ? Sharding::kOptimizer
         : run.shard == "gradients" ? Sharding::kGradients
                                    : Sharding::kNone;
}

DeviceReplicatorOptions replicator_options(const RunOptions& run, const Placement& placement) {
  DeviceReplicatorOptions options{.device = placement.device(), .process_group = placement.group};
  const std::string& strategy = placement.plan.strategy;
  options.strategy = strategy == "dp"    ? Strategy::kDataParallel
                     : strategy == "ddp" ? Strategy::kDistributed
                                         : Strategy::kSingle;
  if (placement.device().is_cpu()) {
    options.cpu_replicas = static_cast<int64_t>(placement.plan.devices.size());
  } else {
    for (const at::Device device : placement.plan.devices) options.gpu_ids.push_back(device.index());
  }
  constexpr int64_t kFewRows = 16;  // batch statistics of fewer rows are noisy
  options.sync_batch_norm =
      run.sync_batchnorm == "on" || (run.sync_batchnorm == "auto" && placement.batch.batch_size < kFewRows);
  options.gradient_compression = run.grad_compression == "fp16"   ? GradientCompression::kFp16
                                 : run.grad_compression == "bf16" ? GradientCompression::kBf16
                                                                  : GradientCompression::kNone;
  options.sharding = sharding_of(run);
  return options;
}

}  // namespace trainkit
