#pragma once
/// Defines the flags that all trainers share and the rules between them.

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/config/config.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/train/step_options.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// What to do when a checkpoint cannot be written: end the run, or continue with the last good one.
enum class OnSaveError { kFail, kContinue };

/// Values of the shared flags, one member per flag. A program changes defaults before add_run_flags:
///
///   RunOptions run{.output_dir = "runs/transformer", .epochs = 100, .batch_size = {16}, .lr = 3e-4};
///   add_run_flags(parser, run);
///
/// An empty string, an empty list and nullopt mean "not given".
struct RunOptions {
  // Data
  std::string data_dir = {};
  /// Loader threads; auto is min(cpus / 2, 8, 2 x devices in use) per machine, see resolve_num_workers.
  IntOrAuto num_workers = {};
  /// LibTorch's intra-op threads of this process; auto: see share_processors.
  IntOrAuto threads = {};
  /// Batches that each worker prefetches; auto is 2, and 4 after an epoch in which the loop waited for data.
  IntOrAuto prefetch_factor = {};
  bool persistent_workers = true;
  bool drop_last = true;
  Seconds timeout{60};
  bool pin_memory = true;
  OnError on_error = OnError::kFail;
  /// -1 means unlimited.
  int64_t max_bad_samples = -1;
  /// Output folder for a small data set, written instead of training.
  std::string make_demo_data = {};

  // Run
  std::string output_dir = "runs/trainkit";
  uint64_t seed = 0;
  int64_t epochs = 10;
  /// Optimizer steps; 0 means unlimited, as for max_time.
  int64_t max_steps = 0;
  Seconds max_time{0};
  /// Intervals in optimizer steps; 0 disables. eval_every unset: at the end of each epoch.
  int64_t log_every = 10;
  std::optional<int64_t> eval_every = {};
  std::optional<int64_t> save_every = {};
  /// Number of newest checkpoints to keep; 0 keeps all.
  int64_t keep_last = 3;
  /// Steps between checkpoints that are kept permanently; 0 disables them.
  int64_t keep_every = 0;
  OnSaveError on_save_error = OnSaveError::kFail;
  std::string tensorboard_dir = {};
  std::string resume = {};
  std::string init_from = {};
  bool overwrite = false;
  bool dry_run = false;
  /// Print the plan of a dry run as JSON.
  bool json = false;
  bool monitor = false;
  int64_t profile = 0;
  bool use_tensorboard = true;
  bool use_wandb = false;
  bool cudnn_benchmark = false;

  // Optimization
  /// Rows per device and micro-batch.
  IntOrAuto batch_size = {32};
  /// Rows per optimizer step over all devices and micro-batches; unset: computed from batch_size and grad_accum_steps.
  std::optional<int64_t> global_batch_size = {};
  int64_t grad_accum_steps = 1;
  double lr = 1e-3;
  bool auto_scale_lr = false;
  double weight_decay = 0.01;
  /// Maximum norm of the gradients; 0 disables clipping.
  double grad_clip = 1.0;
  /// Decay of an exponential moving average of the weights; 0 disables it.
  double ema = 0;
  /// plateau, or a name for create_schedule: constant, linear, cosine, cosine_restarts, step or one_cycle.
  std::string scheduler = "cosine";
  int64_t warmup_steps = 0;
  /// Scheduler plateau: evaluations without improvement, and the factor that the rate is then multiplied by.
  int64_t patience = 10;
  double factor = 0.5;
  /// Evaluations without improvement that end the run; 0 disables early stopping.
  int64_t early_stopping = 0;
  OnNonfinite on_nonfinite = OnNonfinite::kFail;
  int64_t max_nonfinite = 20;

  // Devices
  /// auto, cpu, cuda or cuda:N.
  std::string device = "auto";
  Strategy strategy = Strategy::kAuto;
  bool use_multi_gpu = false;
  std::vector<int> gpu_ids = {};
  int64_t parallel = 1;
  bool mixed_precision = false;
  /// Unset follows mixed_precision.
  std::optional<Precision> precision = {};
  /// highest, high or medium, for at::Context::setFloat32MatmulPrecision.
  std::string float32_matmul_precision = "highest";
  /// A program whose loss function and model read no changing host values sets the default to kAuto, as the bundled
  /// trainers do.
  CudaGraph cuda_graph = CudaGraph::kOff;
  Seconds dist_timeout{120};
  /// loopback, or an address of this machine.
  std::string dist_bind = "loopback";
  /// Ranks of one machine all-reduce CPU tensors in shared memory; see ProcessGroupOptions.
  bool dist_shared_memory = true;
  GradientCompression grad_compression = GradientCompression::kNone;
  Sharding shard = Sharding::kNone;
  /// Whether SyncBatchNorm layers of several replicas normalise with the rows of all. Unset (auto): below 16 rows per
  /// replica.
  std::optional<bool> sync_batchnorm = {};
  /// Predict the memory of a step before the run.
  bool plan_memory = true;
  /// Memory of each device in the plan ("24GiB"); empty: the memory that is free now.
  std::string gpu_memory = {};
  /// Run a few steps on the device before the run, to time them and to check that the batch fits.
  bool measure = false;
  /// Number of devices in the plan of a dry run, more than this machine may have; 0: those of the run.
  int64_t plan_devices = 0;
};

/// What a trainer is asked to do: the names in OptionSpec::modes of its flags. A command on a trained run also has its
/// own name, such as "predict", as a mode.
namespace modes {
/// Training, also of a resumed run; a dry run, which checks all that training uses.
inline constexpr char kTrain[] = "train";
/// --make_demo_data.
inline constexpr char kDemoData[] = "demo_data";
/// Each command on a trained run.
inline constexpr char kRun[] = "run";
/// Those that compute on the device that the user chooses (all but export).
inline constexpr char kDevice[] = "device";
/// Those that compute rows of a data set, on several devices if the user likes.
inline constexpr char kRows[] = "rows";
}  // namespace modes

/// Adds a flag for every member of RunOptions, bound to `options`, with aliases and bounds.
void add_run_flags(ConfigParser& parser, RunOptions& options);

/// Properties of the machine that the checks use.
struct MachineInfo {
  int cuda_devices = 0;
  int cpus = 1;
  /// Ranks that a launcher (trainkit launch, torchrun, Slurm, Open MPI) has started: in the run, on this machine, and
  /// the number of this process on it. 0 ranks: no launcher.
  int64_t ranks = 0;
  int64_t local_ranks = 0;
  int64_t local_rank = 0;
  /// Describes this machine, without a launcher; launched_machine() adds the launcher's environment.
  static MachineInfo here();
};

/// Checks combinations of flags; call it after parse() and the late defaults. Errors name the flag or the line of the
/// file that the value came from (kUsage, kConfig): missing devices, fp16 on a CPU, --resume with --overwrite, a global
/// batch that is not divisible by the devices (kDistributed), and so on.
absl::Status check_run_options(const ConfigParser& parser, const RunOptions& options,
                               const MachineInfo& machine = MachineInfo::here());

/// Resolves --device to a device of this machine: auto is the first CUDA device if there is one, else the CPU.
absl::StatusOr<c10::Device> resolve_device(const ConfigParser& parser, const RunOptions& options,
                                           const MachineInfo& machine = MachineInfo::here());

/// Returns --lr, multiplied by the replicas with --auto_scale_lr (linear scaling rule: Goyal et al. 2017, arXiv
/// 1706.02677).
double resolve_lr(const RunOptions& options, int64_t replicas);

/// Returns the data type of the computation: --precision; else with --mixed_precision fp16 on CUDA and bf16 on the CPU;
/// else fp32.
Precision resolve_precision(const RunOptions& options, c10::Device device);

/// "fp32", "bf16" or "fp16".
const char* name_of(Precision precision);

/// Prepares `options.output_dir` for a run. A dry run only tries to write there, and leaves nothing.
///
/// A folder with a checkpoint requires --resume or --overwrite, one with a finished run --overwrite (else kUsage). A
/// new run, with --overwrite too, replaces only files that an earlier run in this folder is known to have written:
/// run.json lists them. A file of the same name that somebody else put there, or changed, is storage.foreign (kUsage);
/// `files` are further names that the program writes. All other files stay. kStorage if the path is a file, cannot be
/// created or is not writable.
absl::Status prepare_output_dir(const ConfigParser& parser, const RunOptions& options,
                                const std::vector<std::string>& files = {});

/// Removes the files of the earlier run that the new one replaces, with --overwrite those of a finished one too, and
/// nothing else. Call it when nothing but training is left to do, so that a new run that cannot start loses nothing;
/// run_app does. Errors: kStorage, and those of prepare_output_dir.
absl::Status remove_earlier_run(const RunOptions& options, const std::vector<std::string>& files = {});

}  // namespace trainkit
