#include "trainkit/app/run_options.h"

#include <sys/stat.h>
#include <torch/csrc/api/include/torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "trainkit/core/cuda_support.h"
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
  OptionSpec folder = spec("Folder of the data set.");
  folder.path = PathKind::kInput;
  parser.add("data_dir", &o.data_dir, folder);
  parser.add("num_workers", &o.num_workers,
             at_least(0, 1024, "Threads that read rows; 0 reads in the training thread."));
  parser.add("prefetch_factor", &o.prefetch_factor,
             at_least(1, 64, "Batches that each worker keeps ready; auto: 2, then 4 if an epoch was starved."));
  parser.add("persistent_workers", &o.persistent_workers, spec("Keep workers and their memory between epochs."));
  parser.add("drop_last", &o.drop_last, spec("Leave out the last batch of an epoch if it is not full."));
  parser.add("timeout", &o.timeout, at_least(0, 1e6, "Longest wait for a batch; 0 waits for ever."));
  parser.add("pin_memory", &o.pin_memory, spec("Page-locked batches, where CUDA is in use."));
  OptionSpec on_error = spec("What to do with a row that cannot be read.");
  on_error.choices = {"fail", "skip", "replace"};
  parser.add("on_error", &o.on_error, on_error);
  parser.add("max_bad_samples", &o.max_bad_samples,
             at_least(-1, 1e15, "Different bad rows after which the run ends all the same; -1 is no limit."));
  OptionSpec demo = spec("Write a small data set to this folder, in the trainer's own formats, and exit.");
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
  parser.add("output_dir", &o.output_dir, path(PathKind::kOutput, "Folder that the run writes to."));
  parser.add("seed", &o.seed, spec("Everything random follows from it."));
  OptionSpec epochs = count(1, "Passes over the data.");
  epochs.aliases = {"epoch", "max_epochs"};
  parser.add("epochs", &o.epochs, epochs);
  parser.add("max_steps", &o.max_steps, count(0, "End after this many optimizer steps; 0 is no limit."));
  parser.add("max_time", &o.max_time, count(0, "End after this time; 0 is no limit."));
  parser.add("log_every", &o.log_every, count(0, "Steps between lines of the log; 0 is never."));
  parser.add("eval_every", &o.eval_every, count(0, "Steps between evaluations; 0 is never; unset, each epoch's end."));
  parser.add("save_every", &o.save_every, count(0, "Steps between checkpoints; 0 is never, the end included."));
  parser.add("keep_last", &o.keep_last, count(0, "Checkpoints to keep; 0 keeps all."));
  parser.add("keep_every", &o.keep_every, count(0, "Steps between checkpoints that stay for good; 0 is never."));
  OptionSpec on_save_error = spec("What to do when a checkpoint cannot be written.");
  on_save_error.choices = {"fail", "continue"};
  parser.add("on_save_error", &o.on_save_error, on_save_error);
  parser.add("tensorboard_dir", &o.tensorboard_dir,
             path(PathKind::kOutput, "Where event files go; unset, <output_dir>/tensorboard."));
  OptionSpec resume =
      path(PathKind::kInput, "Go on from: latest (of --output_dir), a run's folder, its checkpoints/, one step-...");
  resume.path_words = {"latest"};
  parser.add("resume", &o.resume, resume);
  parser.add("init_from", &o.init_from,
             path(PathKind::kInput, "Start from this file's weights alone: safetensors or PyTorch's, by content."));
  parser.add("overwrite", &o.overwrite, spec("Remove an earlier run from --output_dir."));
  parser.add("dry_run", &o.dry_run, spec("All checks and the plan, no step."));
  parser.add("json", &o.json, {.help = "With --dry_run: the plan as JSON.", .group = "Run", .flag_only = true});
  parser.add("monitor", &o.monitor, spec("Show a live table of devices, memory and loader."));
  parser.add("use_tensorboard", &o.use_tensorboard, spec("Write TensorBoard event files."));
  parser.add("use_wandb", &o.use_wandb, spec("Log to Weights & Biases through its Python client."));
  parser.add("cudnn_benchmark", &o.cudnn_benchmark, spec("Let cuDNN try its algorithms and keep the fastest."));
}

void add_optimization_flags(ConfigParser& parser, RunOptions& o) {
  const auto spec = [](const char* help) { return OptionSpec{.help = help, .group = "Optimization"}; };
  const auto range = [&](double min, double max, const char* help) {
    OptionSpec s = spec(help);
    s.min = min, s.max = max;
    return s;
  };
  parser.add("batch_size", &o.batch_size,
             range(1, 1 << 20, "Rows per device and micro-step; auto: as many as fit into its memory."));
  parser.add("global_batch_size", &o.global_batch_size,
             range(1, 1 << 30, "Rows per optimizer step, over all devices and micro-steps."));
  OptionSpec accumulation = range(1, 1 << 20, "Micro-steps per optimizer step.");
  accumulation.aliases = {"accumulation_steps", "gradient_accumulation_steps"};
  parser.add("grad_accum_steps", &o.grad_accum_steps, accumulation);
  OptionSpec lr = spec("Learning rate.");
  lr.above = 0, lr.max = 1e6;
  parser.add("lr", &o.lr, lr);
  parser.add("auto_scale_lr", &o.auto_scale_lr, spec("Multiply the learning rate with the number of devices."));
  parser.add("weight_decay", &o.weight_decay, range(0, 1e6, "Decoupled weight decay."));
  parser.add("grad_clip", &o.grad_clip, range(0, 1e12, "Largest norm of the gradients; 0 does not clip."));
  OptionSpec scheduler = spec("How the learning rate moves after the warm-up.");
  scheduler.choices = {"constant", "linear", "cosine", "cosine_restarts", "step", "one_cycle", "plateau"};
  parser.add("scheduler", &o.scheduler, scheduler);
  parser.add("warmup_steps", &o.warmup_steps, range(0, 1e15, "Steps over which the learning rate rises from 0."));
  parser.add("patience", &o.patience, range(0, 1e9, "Of plateau: evaluations without improvement."));
  OptionSpec factor = spec("Of plateau: what the learning rate is multiplied with.");
  factor.above = 0, factor.max = 1;
  parser.add("factor", &o.factor, factor);
  parser.add("early_stopping", &o.early_stopping,
             range(0, 1e9, "Evaluations without improvement after which the run ends; 0 is never."));
  OptionSpec on_nonfinite = spec("What to do with a step whose loss or gradients are not finite.");
  on_nonfinite.choices = {"fail", "skip", "rollback"};
  parser.add("on_nonfinite", &o.on_nonfinite, on_nonfinite);
  parser.add("max_nonfinite", &o.max_nonfinite,
             range(1, 1e9, "Steps skipped in a row, or rollbacks to one checkpoint, that end the run."));
}

void add_device_flags(ConfigParser& parser, RunOptions& o) {
  const auto spec = [](const char* help) { return OptionSpec{.help = help, .group = "Devices"}; };
  OptionSpec device = spec("Where to train.");
  device.metavar = "auto|cpu|cuda|cuda:N";
  parser.add("device", &o.device, device);
  OptionSpec strategy = spec("One device, a thread per device (dp), or a process per device (ddp).");
  strategy.choices = {"auto", "single", "dp", "ddp"};
  parser.add("strategy", &o.strategy, strategy);
  parser.add("use_multi_gpu", &o.use_multi_gpu, spec("Train on all GPUs, or on --gpu_ids."));
  OptionSpec gpus = spec("GPUs to train on, as 0 1 2.");
  gpus.min = 0, gpus.max = 127, gpus.max_items = 128, gpus.unique_items = true;
  parser.add("gpu_ids", &o.gpu_ids, gpus);
  OptionSpec parallel = spec("Devices to train on; with --device cpu, logical replicas.");
  parallel.min = 1, parallel.max = 128;
  parser.add("parallel", &o.parallel, parallel);
  parser.add("mixed_precision", &o.mixed_precision, spec("fp16 with a loss scale on CUDA, bf16 on the CPU."));
  OptionSpec precision = spec("Type to compute in; unset follows --mixed_precision.");
  precision.choices = {"fp32", "bf16", "fp16"};
  parser.add("precision", &o.precision, precision);
  OptionSpec cuda_graph = spec("Capture the step as one CUDA graph, where it can be; off: never, on: or fail.");
  cuda_graph.choices = {"auto", "on", "off"};
  parser.add("cuda_graph", &o.cuda_graph, cuda_graph);
  OptionSpec dist_timeout = spec("Longest wait for another rank.");
  dist_timeout.above = 0, dist_timeout.max = 1e6;
  parser.add("dist_timeout", &o.dist_timeout, dist_timeout);
  OptionSpec dist_bind = spec("Address that ranks meet at; loopback keeps it on this machine.");
  dist_bind.metavar = "ADDRESS";
  parser.add("dist_bind", &o.dist_bind, dist_bind);
  parser.add("dist_shared_memory", &o.dist_shared_memory,
             spec("Ranks on the CPU of one machine sum in shared memory, not over sockets."));
  OptionSpec compression = spec("Type in which ddp sends gradients; half the bytes, less exact sums.");
  compression.choices = {"none", "fp16", "bf16"};
  parser.add("grad_compression", &o.grad_compression, compression);
  parser.add("plan_memory", &o.plan_memory, spec("Predict the memory of a step from small ones, before the run."));
  OptionSpec memory = spec("Memory of each device to plan for, as in 24GiB; unset, what is free there.");
  memory.metavar = "SIZE";
  parser.add("gpu_memory", &o.gpu_memory, memory);
  OptionSpec measure = spec("Take a few steps before the run, for their time and whether the batch fits in fact.");
  measure.flag_only = true;
  parser.add("measure", &o.measure, measure);
  OptionSpec plan_devices = spec("With --dry_run: devices to plan for, which need not be here; 0, those of the run.");
  plan_devices.min = 0, plan_devices.max = 1 << 20, plan_devices.flag_only = true;
  parser.add("plan_devices", &o.plan_devices, plan_devices);
}

/// N of "cuda:N"; 0 for "cuda"; nullopt for anything else.
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

/// The cause, and what to do.
std::string why_no_gpu() {
  const CudaDiagnosis diagnosis = diagnose_cuda(probe_cuda());
  return diagnosis.state == CudaState::kReady ? "--device cpu trains without one"
                                              : diagnosis.problem + ": " + diagnosis.remedy;
}

/// A file that asks for what this machine has not is no faulty file: exit code 2, wherever the value came from.
absl::Status not_here(const absl::Status& status) {
  Error error = *error_of(status);
  error.exit_code = ExitCode::kUsage;
  return to_status(error, status.code());
}

/// The devices that --use_multi_gpu, --gpu_ids and --parallel ask for; none of the flags given: `device` alone.
absl::StatusOr<std::vector<c10::Device>> asked_devices(const ConfigParser& parser, const RunOptions& o,
                                                       c10::Device device, const Machine& machine) {
  const bool several_gpus = o.use_multi_gpu;
  if (!o.gpu_ids.empty() && !several_gpus && !parser.is_given("use_multi_gpu")) {
    return parser.invalid("gpu_ids", "needs --use_multi_gpu", "", "one GPU alone is --device cuda:N");
  }
  const bool many = several_gpus || o.parallel > 1;
  if (many && device.is_cuda() && o.device != "auto" && o.device != "cuda") {
    return parser.invalid("device", "names one GPU, but several are asked for", "auto or cuda", "--gpu_ids picks GPUs");
  }
  if (several_gpus) {
    // Where the CPU is asked for by name, as many logical replicas stand for the GPUs that are listed.
    if (o.device == "cpu" && !o.gpu_ids.empty()) return std::vector(o.gpu_ids.size(), device);
    if (device.is_cpu()) {
      return not_here(
          parser.invalid("use_multi_gpu",
                         machine.cuda_devices > 0 ? "contradicts " + parser.source("device") : "no GPU on this machine",
                         "", "--device cpu --parallel N trains N logical replicas on the CPU"));
    }
    std::vector<c10::Device> gpus;
    for (const int id : o.gpu_ids) {
      if (id >= machine.cuda_devices) {
        return not_here(parser.invalid("gpu_ids", "no GPU " + std::to_string(id),
                                       "0.." + std::to_string(machine.cuda_devices - 1),
                                       "CUDA_VISIBLE_DEVICES decides which GPUs are seen; trainkit doctor lists them"));
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
    return parser.invalid("parallel", "more devices than there are",
                          "at most " + std::to_string(machine.cuda_devices) + " (GPUs that are seen)",
                          "--device cpu takes any number, as logical replicas");
  }
  std::vector<c10::Device> gpus;
  for (int64_t id = 0; id < o.parallel; ++id) gpus.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(id));
  return gpus;
}

/// The device of this rank, of those that are asked for.
absl::StatusOr<DevicePlan> resolve_rank(const ConfigParser& parser, const RunOptions& o,
                                        const std::vector<c10::Device>& asked, const Machine& machine) {
  if (o.parallel > 1 && o.parallel != machine.ranks) {
    return parser.invalid("parallel", "contradicts the launcher, which has started other many ranks",
                          std::to_string(machine.ranks), "leave --parallel away under a launcher");
  }
  c10::Device device = asked.front();
  // Where every rank has its own CUDA_VISIBLE_DEVICES, or one GPU is named for the only rank here, there is no choice.
  const bool chosen = o.device != "auto" && o.device != "cuda";
  if (device.is_cuda() && !o.gpu_ids.empty() && o.use_multi_gpu) {
    if (machine.local_rank >= static_cast<int64_t>(asked.size())) {
      return parser.invalid("gpu_ids", "fewer GPUs than ranks on this machine",
                            std::to_string(machine.local_ranks) + " GPUs");
    }
    device = asked[static_cast<size_t>(machine.local_rank)];
  } else if (device.is_cuda() && machine.local_ranks > 1) {
    if (chosen) {
      return parser.invalid("device", "names one GPU for all ranks of this machine", "auto or cuda",
                            "each rank takes the GPU of its number");
    }
    if (machine.local_rank >= machine.cuda_devices && machine.cuda_devices > 1) {
      return to_status({.exit_code = ExitCode::kDistributed,
                        .id = "dist.env",
                        .field = "LOCAL_RANK",
                        .problem = "there are fewer GPUs than ranks on this machine",
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

/// True for step-<eight digits or more>, what CheckpointStore writes.
bool is_checkpoint_name(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  return name.starts_with(kPrefix) && name.size() >= kPrefix.size() + 8 &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// The names of `output_dir`/checkpoints that are checkpoints.
std::vector<fs::path> checkpoints_of(const fs::path& output_dir) {
  std::vector<fs::path> found;
  std::error_code ignored;  // no such folder: no checkpoints
  for (fs::directory_iterator entry(output_dir / "checkpoints", ignored), end; entry != end; entry.increment(ignored)) {
    if (is_checkpoint_name(entry->path().filename().string())) found.push_back(entry->path());
  }
  return found;
}

/// Removes what an earlier run wrote, by name; other files stay.
absl::Status remove_run(const fs::path& output_dir) {
  std::vector<fs::path> old = checkpoints_of(output_dir);
  for (const char* name : {"checkpoints/latest", "config.yaml", "metrics.jsonl", "tensorboard", "bad_samples.csv",
                           "summary.json", "error.json"}) {
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

Machine Machine::here() {
  return {.cuda_devices = static_cast<int>(torch::cuda::device_count()), .cpus = available_cpus()};
}

absl::StatusOr<c10::Device> resolve_device(const ConfigParser& parser, const RunOptions& options,
                                           const Machine& machine) {
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

int resolve_num_workers(const RunOptions& options, const Machine& machine) {
  if (!options.num_workers.is_auto()) return static_cast<int>(*options.num_workers.value);
  return suggest_num_workers(machine.cuda_devices, static_cast<int>(machine.local_ranks), machine.cpus);
}

absl::StatusOr<DevicePlan> resolve_devices(const ConfigParser& parser, const RunOptions& options,
                                           const Machine& machine) {
  TRAINKIT_ASSIGN_OR_RETURN(const c10::Device device, resolve_device(parser, options, machine));
  TRAINKIT_ASSIGN_OR_RETURN(auto asked, asked_devices(parser, options, device, machine));
  const bool launched = machine.ranks > 0;
  if (options.strategy == "ddp" || (options.strategy == "auto" && launched)) {
    if (!launched) {
      return parser.invalid(
          "strategy", "needs a launcher", "auto, single or dp",
          "trainkit launch --nproc_per_node N -- <program> ..., or torchrun --no-python, srun, mpirun");
    }
    return resolve_rank(parser, options, asked, machine);
  }
  if (machine.ranks > 1) {
    return parser.invalid(
        "strategy",
        "the launcher has started " + std::to_string(machine.ranks) + " ranks, which would all train the same",
        "auto or ddp", "start the program without a launcher, or with one rank");
  }
  if (options.strategy == "single" && asked.size() > 1) {
    return parser.invalid("strategy", "contradicts the " + std::to_string(asked.size()) + " devices asked for",
                          "auto or dp");
  }
  const bool parallel = options.strategy == "dp" || asked.size() > 1;
  const auto replicas = static_cast<int64_t>(asked.size());
  return DevicePlan{.strategy = parallel ? "dp" : "single", .devices = std::move(asked), .replicas = replicas};
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
                      .problem = "does not divide among the devices",
                      .got = std::to_string(global),
                      .expected = "a multiple of " + std::to_string(replicas) + " devices",
                      .hint = "train on a number of devices that divides it"},
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

absl::Status check_run_options(const ConfigParser& parser, const RunOptions& options, const Machine& machine) {
  TRAINKIT_ASSIGN_OR_RETURN(const DevicePlan plan, resolve_devices(parser, options, machine));
  TRAINKIT_RETURN_IF_ERROR(check_precision(parser, options, plan.devices.front()));
  TRAINKIT_RETURN_IF_ERROR(resolve_batch(parser, options, plan.replicas).status());
  if (options.grad_compression != "none" && plan.strategy != "ddp") {
    return parser.invalid("grad_compression", "compresses what ddp sends; strategy is " + plan.strategy, "none");
  }
  if (options.on_nonfinite == "rollback" && options.save_every == 0) {
    return parser.invalid("on_nonfinite", "rollback goes back to a checkpoint; --save_every is 0", "fail or skip");
  }
  if (options.json && !options.dry_run) {
    return parser.invalid("json", "needs --dry_run", "", "a run's own JSON is metrics.jsonl and summary.json");
  }
  if (!options.resume.empty() && options.overwrite) {
    return parser.invalid("overwrite", "contradicts --resume", "", "give one of the two");
  }
  if (!options.resume.empty() && !options.init_from.empty()) {
    return parser.invalid("init_from", "contradicts --resume", "", "a resumed run has its weights from the checkpoint");
  }
  return absl::OkStatus();
}

absl::Status prepare_output_dir(const ConfigParser& parser, const RunOptions& options) {
  const fs::path folder(options.output_dir);
  struct stat info {};
  const bool exists = ::stat(folder.c_str(), &info) == 0;
  if (exists && !S_ISDIR(info.st_mode)) return storage_error(options.output_dir, "a file, not a folder");
  if (!checkpoints_of(folder).empty() && options.resume.empty() && !options.overwrite) {
    return parser.invalid("output_dir", "holds the checkpoints of an earlier run", "",
                          "--resume latest goes on with it, --overwrite removes it, --output_dir names another");
  }
  if (options.dry_run) return absl::OkStatus();
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) return storage_error(options.output_dir, "cannot be made: " + failed.message());
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return storage_error(options.output_dir, std::string("cannot be written to: ") + std::strerror(errno));
  }
  return options.overwrite ? remove_run(folder) : absl::OkStatus();
}

}  // namespace trainkit
