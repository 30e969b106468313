#include "trainkit/app/run_options.h"

#include <sys/stat.h>
#include <torch/csrc/api/include/torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "app/run/resume.h"
#include "app/run/run_files.h"
#include "core/device/cuda_support.h"
#include "core/files/new_files.h"
#include "core/files/try_folder.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

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
  if (from_flag && replicas == 1 && parser.is_given("batch_size") && share % rows != 0) {
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
  if (!options.resume.empty() && parser.is_given("init_from")) {
    return parser.invalid("init_from", "contradicts --resume", "",
                          "a resumed run takes its weights from the checkpoint");
  }
  return absl::OkStatus();
}

namespace {

/// Checks the files of an earlier run that a new one would replace.
absl::Status check_earlier_files(const ConfigParser& parser, const RunOptions& options,
                                 const std::vector<std::string>& app_files) {
  const detail::RunFiles files(options.output_dir, app_files);
  if (files.is_running()) {
    return parser.invalid("output_dir", "a run in this folder is still training", "", "choose another --output_dir");
  }
  if (!options.overwrite) {
    if (files.has_checkpoint()) {
      return parser.invalid("output_dir", "contains checkpoints of an earlier run", "",
                            "use --resume latest to continue it, --overwrite to remove it, or another --output_dir");
    }
    if (files.is_finished()) {
      return parser.invalid("output_dir", "contains the results of a finished run", "",
                            "use --overwrite to remove it, or another --output_dir");
    }
  }
  TRAINKIT_RETURN_IF_ERROR(files.check());
  const std::string config = options.output_dir + "/config.yaml";
  std::error_code none;
  if (files.has_list() || !fs::equivalent(parser.config_file(), config, none)) return absl::OkStatus();
  return detail::foreign_file(config, "is the file of --config, and a new run would replace it",
                              "copy it to another folder, or choose another --output_dir");
}

}  // namespace

absl::Status prepare_output_dir(const ConfigParser& parser, const RunOptions& options,
                                const std::vector<std::string>& files) {
  const fs::path folder(options.output_dir);
  struct stat info {};
  const bool exists = ::stat(folder.c_str(), &info) == 0;
  if (exists && !S_ISDIR(info.st_mode)) return storage_error(options.output_dir, "is a file, expected a folder");
  if (detail::is_new_in_its_folder(options)) TRAINKIT_RETURN_IF_ERROR(check_earlier_files(parser, options, files));
  if (options.dry_run) {
    const int error = detail::try_folder(options.output_dir);
    return error == 0 ? absl::OkStatus()
                      : storage_error(options.output_dir, std::string("cannot be written: ") + std::strerror(error));
  }
  if (const absl::Status made = Fs::posix().create_directories(options.output_dir).status(); !made.ok()) {
    return storage_error(options.output_dir, "cannot be created: " + error_of(made)->problem);
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return storage_error(options.output_dir, std::string("is not writable: ") + std::strerror(errno));
  }
  return absl::OkStatus();
}

absl::Status remove_earlier_run(const RunOptions& options, const std::vector<std::string>& files) {
  if (options.dry_run) return absl::OkStatus();
  TRAINKIT_ASSIGN_OR_RETURN(detail::EarlierRun earlier, detail::EarlierRun::make_room(options, files));
  return earlier.remove();
}

}  // namespace trainkit
