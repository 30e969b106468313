#include "trainkit/app/run_options.h"

#include <sys/stat.h>
#include <torch/csrc/api/include/torch/cuda.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "app/run/resume.h"
#include "app/run/run_files.h"
#include "core/device/cuda_support.h"
#include "core/files/new_files.h"
#include "core/files/try_folder.h"
#include "trainkit/app/placement.h"
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

absl::Status check_precision(const ConfigParser& parser, const RunOptions& o, c10::Device device) {
  if (!o.precision) return absl::OkStatus();
  if (o.precision == Precision::kFp16 && device.is_cpu()) {
    return parser.invalid("precision", "fp16 needs a GPU", "fp32 or bf16 on a CPU",
                          "--precision bf16, or --device cuda");
  }
  const bool mixed = o.precision != Precision::kFp32;
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

Precision resolve_precision(const RunOptions& options, c10::Device device) {
  const Precision mixed = device.is_cuda() ? Precision::kFp16 : Precision::kBf16;
  return options.precision.value_or(options.mixed_precision ? mixed : Precision::kFp32);
}

const char* name_of(Precision precision) {
  return precision == Precision::kBf16 ? "bf16" : precision == Precision::kFp16 ? "fp16" : "fp32";
}

double resolve_lr(const RunOptions& options, int64_t replicas) {
  return options.auto_scale_lr ? options.lr * static_cast<double>(replicas) : options.lr;
}

absl::Status check_run_options(const ConfigParser& parser, const RunOptions& options, const MachineInfo& machine) {
  TRAINKIT_ASSIGN_OR_RETURN(const Placement placement, resolve_devices(parser, options, machine));
  TRAINKIT_RETURN_IF_ERROR(check_precision(parser, options, placement.device()));
  TRAINKIT_RETURN_IF_ERROR(resolve_batch(parser, options, placement.batch.replicas).status());
  if (options.grad_compression != GradientCompression::kNone && placement.strategy != Strategy::kDistributed) {
    const std::string strategy = name_of(placement.strategy);
    return parser.invalid("grad_compression", "needs strategy ddp; the strategy is " + strategy, "none");
  }
  if (options.max_steps > 0 && options.profile > options.max_steps) {
    return parser.invalid("profile", "is after the last step", "at most " + std::to_string(options.max_steps));
  }
  if (options.on_nonfinite == OnNonfinite::kRollback && options.save_every == 0) {
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
