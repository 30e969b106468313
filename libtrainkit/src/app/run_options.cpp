#include "trainkit/app/run_options.h"

#include <sys/stat.h>
#include <torch/csrc/api/include/torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "core/cuda_support.h"
#include "trainkit/core/error.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

namespace fs = std::filesystem;

void add_data_flags(ConfigParser& parser, RunOptions& o) {
  const auto spec = [](const char* help) { return OptionSpec{.help = help, .group = "Data"}; };
  const auto at_least = [&](double min, double max, const char* help) {
    OptionSpec s = spec(help);
    s.min = min, s.max = max;
    return s;
  };
  OptionSpec folder = spec("Data set folder.");
  folder.path = PathKind::kInput;
  parser.add("data_dir", &o.data_dir, folder);
  parser.add("num_workers", &o.num_workers, at_least(0, 1024, "Data-loader threads; 0 reads in the calling thread."));
  parser.add("threads", &o.threads,
             at_least(1, 1024,
                      "LibTorch threads (intra-op) of each process; auto: the processors that busy loader "
                      "workers and other ranks leave. Lower it on a machine with other load. The last bits of "
                      "the results depend on it."));
  parser.add("prefetch_factor", &o.prefetch_factor,
             at_least(1, 64, "Batches that each worker prefetches; auto: 2, then 4 if the loop waited for data."));
  parser.add("persistent_workers", &o.persistent_workers, spec("Keep workers and their memory between epochs."));
  parser.add("drop_last", &o.drop_last, spec("Use only the rows of full batches of --batch_size in each epoch."));
  parser.add("timeout", &o.timeout, at_least(0, 1e6, "Maximum wait for a batch; 0 means unlimited."));
  parser.add("pin_memory", &o.pin_memory, spec("Keep batches in page-locked memory if CUDA is used."));
  OptionSpec on_error = spec("Policy for unreadable rows.");
  on_error.choices = {"fail", "skip", "replace"};
  parser.add("on_error", &o.on_error, on_error);
  parser.add(
      "max_bad_samples", &o.max_bad_samples,
      at_least(-1, 1e15, "Maximum number of different unreadable rows, else the run fails; -1 means unlimited."));
  OptionSpec demo = spec("Write a small data set in the trainer's formats to this folder and exit.");
  demo.path = PathKind::kOutput, demo.flag_only = true;
  parser.add("make_demo_data", &o.make_demo_data, demo);
}

void add_progress_flags(ConfigParser& parser, RunOptions& o) {
  const auto spec = [](const char* help) { return OptionSpec{.help = help, .group = "Run"}; };
  const auto path = [&](PathKind kind, const char* help) {
    OptionSpec s = spec(help);
    s.path = kind;
    return s;
  };
  const auto count = [&](double min, const char* help) {
    OptionSpec s = spec(help);
    s.min = min, s.max = 1e15;
    return s;
  };
  parser.add("output_dir", &o.output_dir, path(PathKind::kOutput, "Output folder of the run."));
  parser.add("seed", &o.seed, spec("Random seed."));
  OptionSpec epochs = count(1, "Number of epochs.");
  epochs.aliases = {"epoch", "max_epochs"};
  parser.add("epochs", &o.epochs, epochs);
  parser.add("max_steps", &o.max_steps, count(0, "Maximum number of optimizer steps; 0 means unlimited."));
  parser.add("max_time", &o.max_time, count(0, "Maximum duration of the run; 0 means unlimited."));
  parser.add("log_every", &o.log_every, count(0, "Steps between log records; 0 disables them."));
  parser.add("eval_every", &o.eval_every,
             count(0, "Steps between evaluations; 0 disables them; unset: once per epoch."));
  parser.add("save_every", &o.save_every,
             count(0, "Steps between checkpoints; 0 disables them, including the final one; unset: once per epoch."));
  parser.add("keep_last", &o.keep_last, count(0, "Number of newest checkpoints to keep; 0 keeps all."));
  parser.add("keep_every", &o.keep_every,
             count(0, "Steps between checkpoints that are kept permanently; 0 disables them."));
  OptionSpec on_save_error = spec("Policy for checkpoints that cannot be written.");
  on_save_error.choices = {"fail", "continue"};
  parser.add("on_save_error", &o.on_save_error, on_save_error);
  parser.add("tensorboard_dir", &o.tensorboard_dir,
             path(PathKind::kOutput, "Folder of TensorBoard event files; unset: <output_dir>/tensorboard."));
  OptionSpec resume = path(
      PathKind::kInput,
      "Resume from `latest`, a run folder or a checkpoint. `latest` is the newest one of --output_dir; a checkpoint is "
      "checkpoints/ or one step-...");
  resume.path_words = {"latest"};
  parser.add("resume", &o.resume, resume);
  parser.add("init_from", &o.init_from,
             path(PathKind::kInput, "Initialise the weights from this safetensors or PyTorch file."));
  parser.add("overwrite", &o.overwrite, spec("Remove the files of an earlier run from --output_dir."));
  parser.add("dry_run", &o.dry_run, spec("Check everything and print the plan without training."));
  parser.add("json", &o.json, {.help = "With --dry_run: print the plan as JSON.", .group = "Run", .flag_only = true});
  parser.add("monitor", &o.monitor, spec("Show a live table of devices, memory and data loader."));
  OptionSpec profile = spec("Write this step and the next 10 as a trace for Perfetto, profile.json; 0: none.");
  profile.min = 0, profile.metavar = "STEP", profile.flag_only = true;
  parser.add("profile", &o.profile, profile);
  parser.add("use_tensorboard", &o.use_tensorboard, spec("Write TensorBoard event files."));
  parser.add("use_wandb", &o.use_wandb, spec("Log to Weights & Biases through its Python client."));
  parser.add("cudnn_benchmark", &o.cudnn_benchmark, spec("Let cuDNN benchmark its algorithms and use the fastest."));
}

void add_optimization_flags(ConfigParser& parser, RunOptions& o) {
  const auto spec = [](const char* help) { return OptionSpec{.help = help, .group = "Optimization"}; };
  const auto range = [&](double min, double max, const char* help) {
    OptionSpec s = spec(help);
    s.min = min, s.max = max;
    return s;
  };
  parser.add("batch_size", &o.batch_size,
             range(1, 1 << 20, "Rows per device and micro-batch; auto: the largest that fits into memory."));
  parser.add("global_batch_size", &o.global_batch_size,
             range(1, 1 << 30, "Rows per optimizer step, over all devices and micro-batches."));
  OptionSpec accumulation = range(1, 1 << 20, "Gradient accumulation: micro-batches per optimizer step.");
  accumulation.aliases = {"accumulation_steps", "gradient_accumulation_steps"};
  parser.add("grad_accum_steps", &o.grad_accum_steps, accumulation);
  OptionSpec lr = spec("Learning rate.");
  lr.above = 0, lr.max = 1e6;
  parser.add("lr", &o.lr, lr);
  parser.add("auto_scale_lr", &o.auto_scale_lr, spec("Multiply the learning rate by the number of devices."));
  parser.add("weight_decay", &o.weight_decay, range(0, 1e6, "Decoupled weight decay."));
  parser.add("grad_clip", &o.grad_clip, range(0, 1e12, "Maximum norm of the gradients; 0 disables clipping."));
  parser.add("ema", &o.ema,
             range(0, 0.9999999,
                   "Decay of an exponential moving average of the weights, such as 0.999; the average is "
                   "evaluated, saved and tested. 0 disables it."));
  OptionSpec scheduler = spec("Learning-rate schedule after the warm-up.");
  scheduler.choices = {"constant", "linear", "cosine", "cosine_restarts", "step", "one_cycle", "plateau"};
  parser.add("scheduler", &o.scheduler, scheduler);
  parser.add("warmup_steps", &o.warmup_steps, range(0, 1e15, "Steps of linear learning-rate warm-up from 0."));
  parser.add("patience", &o.patience,
             range(0, 1e9, "Scheduler plateau: evaluations without improvement before the learning rate is reduced."));
  OptionSpec factor = spec("Scheduler plateau: factor of each learning-rate reduction.");
  factor.above = 0, factor.max = 1;
  parser.add("factor", &o.factor, factor);
  parser.add("early_stopping", &o.early_stopping,
             range(0, 1e9, "Evaluations without improvement that end the run; 0 disables early stopping."));
  OptionSpec on_nonfinite = spec("Policy for steps with a non-finite loss or gradient.");
  on_nonfinite.choices = {"fail", "skip", "rollback"};
  parser.add("on_nonfinite", &o.on_nonfinite, on_nonfinite);
  parser.add("max_nonfinite", &o.max_nonfinite,
             range(1, 1e9, "Consecutive skipped steps, or rollbacks to one checkpoint, that end the run."));
}

void add_device_flags(ConfigParser& parser, RunOptions& o) {
  const auto spec = [](const char* help) { return OptionSpec{.help = help, .group = "Devices"}; };
  OptionSpec device = spec("Device to compute on.");
  device.metavar = "auto|cpu|cuda|cuda:N";
  parser.add("device", &o.device, device);
  OptionSpec strategy = spec("Parallelism: one device, a thread per device (dp) or a process per device (ddp).");
  strategy.choices = {"auto", "single", "dp", "ddp"};
  parser.add("strategy", &o.strategy, strategy);
  parser.add("use_multi_gpu", &o.use_multi_gpu, spec("Use all GPUs, or --gpu_ids."));
  OptionSpec gpus = spec("GPUs to use, for example 0 1 2.");
  gpus.min = 0, gpus.max = 127, gpus.max_items = 128, gpus.unique_items = true;
  parser.add("gpu_ids", &o.gpu_ids, gpus);
  OptionSpec parallel = spec("Number of devices; with --device cpu, of logical replicas.");
  parallel.min = 1, parallel.max = 128;
  parser.add("parallel", &o.parallel, parallel);
  parser.add("mixed_precision", &o.mixed_precision,
             spec("Mixed precision: fp16 with loss scaling on CUDA, bf16 on the CPU."));
  OptionSpec precision = spec("Data type of the computation; unset: as --mixed_precision.");
  precision.choices = {"fp32", "bf16", "fp16"};
  parser.add("precision", &o.precision, precision);
  OptionSpec cuda_graph = spec("Capture a step as one CUDA graph; auto: where possible, on: or fail, off: never.");
  cuda_graph.choices = {"auto", "on", "off"};
  parser.add("cuda_graph", &o.cuda_graph, cuda_graph);
  OptionSpec dist_timeout = spec("Maximum wait for another rank.");
  dist_timeout.above = 0, dist_timeout.max = 1e6;
  parser.add("dist_timeout", &o.dist_timeout, dist_timeout);
  OptionSpec dist_bind = spec("Address that ranks connect to; loopback: this machine only.");
  dist_bind.metavar = "ADDRESS";
  parser.add("dist_bind", &o.dist_bind, dist_bind);
  parser.add("dist_shared_memory", &o.dist_shared_memory,
             spec("All-reduce CPU tensors of one machine in shared memory instead of over sockets."));
  OptionSpec compression =
      spec("Data type of the gradients that ddp sends; 16 bits halve the traffic and lose precision.");
  compression.choices = {"none", "fp16", "bf16"};
  parser.add("grad_compression", &o.grad_compression, compression);
  OptionSpec shard = spec(
      "What the ranks of ddp, or the GPUs of dp, divide among them: the optimizer's state, or gradients too. Less "
      "memory per GPU, same result.");
  shard.choices = {"none", "optimizer", "gradients"};
  parser.add("shard", &o.shard, shard);
  OptionSpec sync_batchnorm = spec(
      "Normalise batches over the rows of all devices; auto: below 16 rows per device. Each such layer waits for all.");
  sync_batchnorm.choices = {"auto", "on", "off"};
  parser.add("sync_batchnorm", &o.sync_batchnorm, sync_batchnorm);
  parser.add("plan_memory", &o.plan_memory, spec("Predict the memory of a step before the run."));
  OptionSpec memory = spec("Memory of each device in the plan, for example 24GiB; unset: the free memory.");
  memory.metavar = "SIZE";
  parser.add("gpu_memory", &o.gpu_memory, memory);
  OptionSpec measure = spec("Run a few steps before the run to time them and to check that the batch fits.");
  measure.flag_only = true;
  parser.add("measure", &o.measure, measure);
  OptionSpec plan_devices =
      spec("With --dry_run: number of devices in the plan, also more than this machine has; 0: those of the run.");
  plan_devices.min = 0, plan_devices.max = 1 << 20, plan_devices.flag_only = true;
  parser.add("plan_devices", &o.plan_devices, plan_devices);
}

/// Parses N of "cuda:N"; 0 for "cuda"; nullopt for anything else.
std::optional<int> cuda_index(std::string_view device) {
  if (device == "cuda") return 0;
  if (!device.starts_with("cuda:")) return std::nullopt;
  device.remove_prefix(5);
  int index = 0;
  const auto result = std::from_chars(device.data(), device.data() + device.size(), index);
  const bool whole = result.ec == std::errc() && result.ptr == device.data() + device.size();
  const bool canonical = !device.empty() && device[0] != '-' && (device.size() == 1 || device[0] != '0');
  return whole && canonical && index < 128 ? std::optional(index) : std::nullopt;
}

/// Explains why there is no GPU, and what to do.
std::string why_no_gpu() {
  const CudaDiagnosis diagnosis = diagnose_cuda(probe_cuda());
  return diagnosis.state == CudaState::kReady ? "--device cpu trains without one"
                                              : diagnosis.problem + ": " + diagnosis.remedy;
}

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
absl::StatusOr<DevicePlan> resolve_rank(const ConfigParser& parser, const RunOptions& o,
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
  return DevicePlan{.strategy = "ddp", .devices = {device}, .replicas = machine.ranks};
}

absl::Status check_precision(const ConfigParser& parser, const RunOptions& o, c10::Device device) {
  if (o.precision.empty()) return absl::OkStatus();
  if (o.precision == "fp16" && device.is_cpu()) {
    return parser.invalid("precision", "fp16 needs a GPU", "fp32 or bf16 on a CPU",
                          "--precision bf16, or --device cuda");
  }
  const bool mixed = o.precision != "fp32";
  if (parser.is_given("mixed_precision") && parser.is_given("precision") && mixed != o.mixed_precision) {
    return parser.invalid("precision", "contradicts " + parser.source("mixed_precision"), "", "give one of the two");
  }
  return absl::OkStatus();
}

absl::Status storage_error(const std::string& path, std::string problem, std::string hint = {}) {
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.output_dir",
                    .where = path,
                    .field = "output_dir",
                    .problem = std::move(problem),
                    .hint = std::move(hint)});
}

/// Returns true for step-<eight digits or more>, the names that CheckpointStore writes.
bool is_checkpoint_name(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  return name.starts_with(kPrefix) && name.size() >= kPrefix.size() + 8 &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Lists the checkpoints in `output_dir`/checkpoints.
std::vector<fs::path> checkpoints_of(const fs::path& output_dir) {
  std::vector<fs::path> found;
  std::error_code ignored;  // no such folder: no checkpoints
  for (fs::directory_iterator entry(output_dir / "checkpoints", ignored), end; entry != end; entry.increment(ignored)) {
    if (is_checkpoint_name(entry->path().filename().string())) found.push_back(entry->path());
  }
  return found;
}

/// Removes the files of an earlier run by name; keeps other files.
absl::Status remove_run(const fs::path& output_dir) {
  std::vector<fs::path> old = checkpoints_of(output_dir);
  for (const char* name :
       {"checkpoints/latest", "config.yaml", "metrics.jsonl", "tensorboard", "results", "loss.svg", "bad_samples.csv",
        "summary.json", "error.json", "profile.json", "run.json", "report.html"}) {
    old.push_back(output_dir / name);
  }
  for (const fs::path& path : old) {
    std::error_code failed;
    fs::remove_all(path, failed);  // does not follow links
    if (failed) return storage_error(path.string(), "cannot be removed: " + failed.message());
  }
  return absl::OkStatus();
}

}  // namespace

void add_run_flags(ConfigParser& parser, RunOptions& options) {
  add_data_flags(parser, options);
  add_progress_flags(parser, options);
  add_optimization_flags(parser, options);
  add_device_flags(parser, options);
}

MachineInfo MachineInfo::here() {
  return {.cuda_devices = static_cast<int>(torch::cuda::device_count()), .cpus = available_cpus()};
}

absl::StatusOr<c10::Device> resolve_device(const ConfigParser& parser, const RunOptions& options,
                                           const MachineInfo& machine) {
  const bool has_cuda = machine.cuda_devices > 0;
  if (options.device == "cpu" || (options.device == "auto" && !has_cuda)) return c10::Device(c10::kCPU);
  if (options.device == "auto") return c10::Device(c10::kCUDA, 0);
  const auto index = cuda_index(options.device);
  if (!index) return parser.invalid("device", "not a device", "auto, cpu, cuda or cuda:N");
  if (!has_cuda) return parser.invalid("device", "no GPU on this machine", "cpu", why_no_gpu());
  if (*index >= machine.cuda_devices) {
    return parser.invalid("device", "no such GPU", "cuda:0..cuda:" + std::to_string(machine.cuda_devices - 1));
  }
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(*index));
}

c10::ScalarType resolve_precision(const RunOptions& options, c10::Device device) {
  if (options.precision == "fp16") return c10::kHalf;
  if (options.precision == "bf16") return c10::kBFloat16;
  if (options.precision == "fp32" || !options.mixed_precision) return c10::kFloat;
  return device.is_cuda() ? c10::kHalf : c10::kBFloat16;
}

int resolve_num_workers(const RunOptions& options, const DevicePlan& plan, const MachineInfo& machine) {
  if (!options.num_workers.is_auto()) return static_cast<int>(*options.num_workers.value);
  const int ranks = static_cast<int>(std::max<int64_t>(machine.local_ranks, 1));
  return suggest_num_workers(static_cast<int>(plan.devices.size()) * ranks, ranks, machine.cpus);
}

absl::StatusOr<DevicePlan> resolve_devices(const ConfigParser& parser, const RunOptions& options,
                                           const MachineInfo& machine) {
  TRAINKIT_ASSIGN_OR_RETURN(const c10::Device device, resolve_device(parser, options, machine));
  TRAINKIT_ASSIGN_OR_RETURN(auto requested, requested_devices(parser, options, device, machine));
  const bool launched = machine.ranks > 0;
  if (options.strategy == "ddp" || (options.strategy == "auto" && launched)) {
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
  if (options.strategy == "single" && requested.size() > 1) {
    return parser.invalid("strategy", "contradicts the " + std::to_string(requested.size()) + " devices requested",
                          "auto or dp");
  }
  const bool parallel = options.strategy == "dp" || requested.size() > 1;
  const auto replicas = static_cast<int64_t>(requested.size());
  return DevicePlan{.strategy = parallel ? "dp" : "single", .devices = std::move(requested), .replicas = replicas};
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
  if (from_flag && replicas == 1 && share % rows != 0) {
    return parser.invalid("global_batch_size", "not a multiple of batch_size", "a multiple of " + std::to_string(rows));
  }
  int64_t per_device = std::min(rows, share);
  while (share % per_device != 0) --per_device;
  return BatchPlan{per_device, replicas, share / per_device};
}

double resolve_lr(const RunOptions& options, int64_t replicas) {
  return options.auto_scale_lr ? options.lr * static_cast<double>(replicas) : options.lr;
}

absl::Status check_run_options(const ConfigParser& parser, const RunOptions& options, const MachineInfo& machine) {
  TRAINKIT_ASSIGN_OR_RETURN(const DevicePlan plan, resolve_devices(parser, options, machine));
  TRAINKIT_RETURN_IF_ERROR(check_precision(parser, options, plan.devices.front()));
  TRAINKIT_RETURN_IF_ERROR(resolve_batch(parser, options, plan.replicas).status());
  if (options.grad_compression != "none" && plan.strategy != "ddp") {
    return parser.invalid("grad_compression", "needs strategy ddp; the strategy is " + plan.strategy, "none");
  }
  if (options.max_steps > 0 && options.profile > options.max_steps) {
    return parser.invalid("profile", "is after the last step", "at most " + std::to_string(options.max_steps));
  }
  if (options.on_nonfinite == "rollback" && options.save_every == 0) {
    return parser.invalid("on_nonfinite", "rollback needs checkpoints, but --save_every is 0", "fail or skip");
  }
  if (options.json && !options.dry_run) {
    return parser.invalid("json", "needs --dry_run", "", "a run writes metrics.jsonl and summary.json");
  }
  if (!options.resume.empty() && options.overwrite) {
    return parser.invalid("overwrite", "contradicts --resume", "", "give one of the two");
  }
  if (!options.resume.empty() && !options.init_from.empty()) {
    return parser.invalid("init_from", "contradicts --resume", "",
                          "a resumed run takes its weights from the checkpoint");
  }
  return absl::OkStatus();
}

absl::Status prepare_output_dir(const ConfigParser& parser, const RunOptions& options) {
  const fs::path folder(options.output_dir);
  struct stat info {};
  const bool exists = ::stat(folder.c_str(), &info) == 0;
  if (exists && !S_ISDIR(info.st_mode)) return storage_error(options.output_dir, "is a file, expected a folder");
  if (!checkpoints_of(folder).empty() && options.resume.empty() && !options.overwrite) {
    return parser.invalid("output_dir", "contains checkpoints of an earlier run", "",
                          "use --resume latest to continue it, --overwrite to remove it, or another --output_dir");
  }
  if (options.dry_run) return absl::OkStatus();
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) return storage_error(options.output_dir, "cannot be created: " + failed.message());
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return storage_error(options.output_dir, std::string("is not writable: ") + std::strerror(errno));
  }
  return absl::OkStatus();
}

absl::Status remove_earlier_run(const RunOptions& options) {
  return options.overwrite && !options.dry_run ? remove_run(options.output_dir) : absl::OkStatus();
}

}  // namespace trainkit
