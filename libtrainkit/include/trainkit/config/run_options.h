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
  int64_t prefetch_factor = 2;
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
  Seconds dist_timeout{120};
  std::string dist_bind = "loopback";
};

/// Adds every flag of RunOptions, bound to `options`, with the design's names, aliases and bounds.
void add_run_flags(ConfigParser& parser, RunOptions& options);

/// What the checks need to know of the machine.
struct Machine {
  int cuda_devices = 0;
  int cpus = 1;
  /// This one.
  static Machine here();
};

/// The combinations that no single flag can check. Call it after parse() and the late defaults. Errors are blamed on
/// the flag or the line of the file that they came from (kUsage, kConfig): devices that are not there, fp16 on a CPU,
/// --resume with --overwrite, several devices and --batch_size auto (not in this release), and so on.
absl::Status check_run_options(const ConfigParser& parser, const RunOptions& options,
                               const Machine& machine = Machine::here());

/// --device as a device: auto is the first CUDA device if there is one, else the CPU. The device is there.
absl::StatusOr<c10::Device> resolve_device(const ConfigParser& parser, const RunOptions& options,
                                           const Machine& machine = Machine::here());

/// The type to compute in: --precision, else with --mixed_precision fp16 on CUDA and bf16 on the CPU, else fp32.
c10::ScalarType resolve_precision(const RunOptions& options, c10::Device device);

/// --num_workers as a number: auto is min(cpus / 2, 8, 2 x devices) and at least 1.
int resolve_num_workers(const RunOptions& options, const Machine& machine = Machine::here());

/// Micro-steps per optimizer step: grad_accum_steps, or what global_batch_size asks for. Needs check_run_options.
int64_t resolve_grad_accum_steps(const RunOptions& options);

/// Makes `options.output_dir` ready for a run; nothing is written in a dry run.
///
/// A folder that holds a checkpoint is taken only with --resume or --overwrite (kUsage); --overwrite removes the
/// earlier run's files, by their names, and nothing else. One without a checkpoint is used as it is. kStorage if it is
/// a file, cannot be made or may not be written to.
absl::Status prepare_output_dir(const ConfigParser& parser, const RunOptions& options);

}  // namespace trainkit
