#pragma once
/// The flags that every trainer shares, and the rules between them.

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/config/config.h"

namespace trainkit {

/// One member per flag, under the flag's name. A program sets other defaults before add_run_flags:
///
///   RunOptions run{.output_dir = "runs/transformer", .epochs = 100, .batch_size = {16}, .lr = 3e-4};
///   add_run_flags(parser, run);
///
/// An empty string, an empty list and nullopt mean that nothing was given. Words (on_error, strategy, precision, ...)
/// are kept as the user wrote them and checked against the flag's choices: the enums they stand for belong to modules
/// that config does not know.
struct RunOptions {
  // Data
  std::string data_dir = {};
  /// Threads that read rows; auto is min(cpus / 2, 8, 2 x devices) per machine, see resolve_num_workers.
  IntOrAuto num_workers = {};
  /// Batches that each worker keeps ready; auto is 2, and 4 from the end of an epoch on in which that was too few.
  IntOrAuto prefetch_factor = {};
  bool persistent_workers = true;
  bool drop_last = true;
  Seconds timeout{60};
  bool pin_memory = true;
  /// fail, skip or replace.
  std::string on_error = "fail";
  /// -1 is no limit.
  int64_t max_bad_samples = -1;
  /// Folder to write a small data set to, instead of training.
  std::string make_demo_data = {};

  // Run
  std::string output_dir = "runs/trainkit";
  uint64_t seed = 0;
  int64_t epochs = 10;
  /// Optimizer steps; 0 is no limit. So for max_time.
  int64_t max_steps = 0;
  Seconds max_time{0};
  /// Intervals in optimizer steps; 0 is never. eval_every unset: at the end of each epoch.
  int64_t log_every = 10;
  std::optional<int64_t> eval_every = {};
  std::optional<int64_t> save_every = {};
  /// Checkpoints to keep; 0 keeps all.
  int64_t keep_last = 3;
  /// Steps between checkpoints that stay for good; 0 is never.
  int64_t keep_every = 0;
  /// fail or continue.
  std::string on_save_error = "fail";
  std::string tensorboard_dir = {};
  std::string resume = {};
  std::string init_from = {};
  bool overwrite = false;
  bool dry_run = false;
  /// The plan of a dry run as JSON.
  bool json = false;
  bool monitor = false;
  bool use_tensorboard = true;
  bool use_wandb = false;
  bool cudnn_benchmark = false;

  // Optimization
  /// Rows per device and micro-step.
  IntOrAuto batch_size = {32};
  /// Rows per optimizer step over all devices and accumulation; unset follows from batch_size and grad_accum_steps.
  std::optional<int64_t> global_batch_size = {};
  int64_t grad_accum_steps = 1;
  double lr = 1e-3;
  bool auto_scale_lr = false;
  double weight_decay = 0.01;
  /// Largest norm of the gradients; 0 does not clip.
  double grad_clip = 1.0;
  /// constant, linear, cosine, cosine_restarts, step, one_cycle or plateau.
  std::string scheduler = "cosine";
  int64_t warmup_steps = 0;
  /// Of plateau: evaluations without improvement, and what the rate is multiplied with then.
  int64_t patience = 10;
  double factor = 0.5;
  /// Evaluations without improvement after which the run ends; 0 is never.
  int64_t early_stopping = 0;
  /// fail, skip or rollback.
  std::string on_nonfinite = "fail";
  int64_t max_nonfinite = 20;

  // Devices
  /// auto, cpu, cuda or cuda:N.
  std::string device = "auto";
  /// auto, single, dp or ddp.
  std::string strategy = "auto";
  bool use_multi_gpu = false;
  std::vector<int> gpu_ids = {};
  int64_t parallel = 1;
  bool mixed_precision = false;
  /// fp32, bf16 or fp16; empty follows mixed_precision.
  std::string precision = {};
  /// auto, on or off: whether a step is one CUDA graph. A program whose loss function and model read no host values
  /// that change makes auto its default, as the project's trainers do.
  std::string cuda_graph = "off";
  Seconds dist_timeout{120};
  std::string dist_bind = "loopback";
  /// Ranks of one machine sum CPU tensors in memory that they share; see ProcessGroupOptions.
  bool dist_shared_memory = true;
  /// none, fp16 or bf16: the type in which ddp sends gradients.
  std::string grad_compression = "none";
  /// Predict the memory of a step before the run.
  bool plan_memory = true;
  /// Memory of each device to plan for ("24GiB"); empty: what is free there.
  std::string gpu_memory = {};
  /// Take a few steps on the device before the run, for their time and whether the batch fits.
  bool measure = false;
  /// Devices to plan for in a dry run, which need not be here; 0: those of the run.
  int64_t plan_devices = 0;
};

/// Adds every flag of RunOptions, bound to `options`, with the design's names, aliases and bounds.
void add_run_flags(ConfigParser& parser, RunOptions& options);

/// What the checks need to know of the machine.
struct Machine {
  int cuda_devices = 0;
  int cpus = 1;
  /// What a launcher (trainkit launch, torchrun, Slurm, Open MPI) has started: ranks of the run, those of them on this
  /// machine, and which of the latter this process is. 0 ranks: there is no launcher.
  int64_t ranks = 0;
  int64_t local_ranks = 0;
  int64_t local_rank = 0;
  /// This one, as if there were no launcher: the module that reads a launcher's environment is above this one.
  static Machine here();
};

/// The combinations that no single flag can check. Call it after parse() and the late defaults. Errors are blamed on
/// the flag or the line of the file that they came from (kUsage, kConfig): devices that are not there, fp16 on a CPU,
/// --resume with --overwrite, a global batch that the devices cannot share (kDistributed), and so on.
absl::Status check_run_options(const ConfigParser& parser, const RunOptions& options,
                               const Machine& machine = Machine::here());

/// --device as a device: auto is the first CUDA device if there is one, else the CPU. The device is there.
absl::StatusOr<c10::Device> resolve_device(const ConfigParser& parser, const RunOptions& options,
                                           const Machine& machine = Machine::here());

/// Where a run trains.
struct DevicePlan {
  /// single, dp or ddp.
  std::string strategy = "single";
  /// Those of this process, a replica of the model on each; on the CPU the same one several times.
  std::vector<c10::Device> devices = {c10::Device(c10::kCPU)};
  /// Replicas over all processes.
  int64_t replicas = 1;
};

/// --strategy, --device, --use_multi_gpu, --gpu_ids and --parallel as devices. auto is ddp under a launcher, dp when
/// several devices are asked for, else single; a rank of ddp takes the GPU of its number on the machine. Errors: more
/// devices than there are, flags that contradict each other or the launcher.
absl::StatusOr<DevicePlan> resolve_devices(const ConfigParser& parser, const RunOptions& options,
                                           const Machine& machine = Machine::here());

/// Rows per optimizer step: batch_size x replicas x grad_accum_steps.
struct BatchPlan {
  int64_t batch_size = 1;
  int64_t replicas = 1;
  int64_t grad_accum_steps = 1;
  int64_t global_batch_size() const { return batch_size * replicas * grad_accum_steps; }
};

/// Micro-batches on `replicas` devices: batch_size and grad_accum_steps as given, or what makes `global_batch_size`
/// (0: that of the options, if any) of them. Then the batch per device is the largest divisor of its share that is not
/// above --batch_size. With --batch_size auto one row each, until the memory is planned. A global batch that does not
/// divide by the replicas is an error of exit code 8.
absl::StatusOr<BatchPlan> resolve_batch(const ConfigParser& parser, const RunOptions& options, int64_t replicas,
                                        int64_t global_batch_size = 0);

/// --lr, times the replicas with --auto_scale_lr (the linear rule: Goyal et al. 2017, arXiv 1706.02677).
double resolve_lr(const RunOptions& options, int64_t replicas);

/// The type to compute in: --precision, else with --mixed_precision fp16 on CUDA and bf16 on the CPU, else fp32.
c10::ScalarType resolve_precision(const RunOptions& options, c10::Device device);

/// --num_workers as a number for this process: auto is min(cpus / 2, 8, 2 x devices), shared by the ranks of this
/// machine, and at least 1.
int resolve_num_workers(const RunOptions& options, const Machine& machine = Machine::here());

/// Makes `options.output_dir` ready for a run; nothing is written in a dry run.
///
/// A folder that holds a checkpoint is taken only with --resume or --overwrite (kUsage); --overwrite removes the
/// earlier run's files, by their names, and nothing else. One without a checkpoint is used as it is. kStorage if it is
/// a file, cannot be made or may not be written to.
absl::Status prepare_output_dir(const ConfigParser& parser, const RunOptions& options);

}  // namespace trainkit
