#include "hsi_classification/benchmark.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>

#include "core/files/new_files.h"
#include "trainkit/app/app.h"
#include "trainkit/app/placement.h"
#include "trainkit/config/config.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/report/summary.h"

namespace trainkit::hsi {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<const char*, const char*>, 3> kCommands = {
    {{"benchmark", "Training speed on 1, 2, ... devices, by feed and precision."},
     {"sweep", "Training speed over workers, prefetch and batch; prints the recommended flags."},
     {"quick_perf_test", "Finds the bottleneck (loader or step) in under a minute."}}};

struct BenchmarkOptions {
  std::string model = "cnn2d";
  std::optional<int64_t> patch_size = {};
  int64_t bands = 200;
  int64_t batch_size = 32;
  int64_t gpus = 1;
  std::string device = "auto";
  std::vector<std::string> feed = {"device", "loader"};
  std::vector<std::string> precision = {};
  IntOrAuto num_workers = {};
  int64_t prefetch_factor = 2;
  bool mixed_precision = false;
  double seconds = 3;
  std::string json = {};
};

void add_flags(ConfigParser& parser, BenchmarkOptions& o, std::string_view command) {
  parser.add("model", &o.model, {.help = "Network.", .choices = model_names()});
  parser.add("patch_size", &o.patch_size,
             {.help = "Rows and columns of a patch, odd. Default: that of the model.", .min = 1, .max = 255});
  parser.add("bands", &o.bands, {.help = "Bands of the random scene.", .min = 1, .max = 4096});
  parser.add("device", &o.device, {.help = "auto, cpu or cuda.", .choices = {"auto", "cpu", "cuda"}});
  parser.add("mixed_precision", &o.mixed_precision,
             {.help = "fp16 on CUDA, bf16 on the CPU.",
              .needs = command == "benchmark" ? std::vector<OptionNeed>{{"precision", {"", "[]"}}}
                                              : std::vector<OptionNeed>{}});
  parser.add("seconds", &o.seconds, {.help = "Measurement time per setting in seconds.", .max = 600, .above = 0});
  parser.add("json", &o.json, {.help = "Also write the results to this file.", .path = PathKind::kOutput});
  if (command == "benchmark") {
    parser.add("gpus", &o.gpus,
               {.help = "Measure 1, 2, ..., N devices; logical replicas on the CPU.",
                .aliases = {"parallel"},
                .min = 1,
                .max = 64});
  }
  if (command == "sweep") return;
  parser.add("batch_size", &o.batch_size, {.help = "Patches per device and step.", .min = 1, .max = 1 << 20});
  parser.add("num_workers", &o.num_workers, {.help = "Loader threads.", .min = 0, .max = 1024});
  parser.add("prefetch_factor", &o.prefetch_factor, {.help = "Batches prefetched per worker.", .min = 1, .max = 64});
  if (command == "benchmark") {
    parser.add("feed", &o.feed,
               {.help = "Sources of patches to measure: gathered on the device, or copied by the loader.",
                .choices = {"device", "loader"},
                .unique_items = true});
    parser.add("precision", &o.precision,
               {.help = "Precisions to measure. Default: fp32, on CUDA also fp16; with --mixed_precision that one.",
                .choices = {"fp32", "bf16", "fp16"},
                .unique_items = true});
  }
}

/// Returns the first device of this process: the one of its local rank, if there is one for each rank of the machine.
absl::StatusOr<at::Device> first_device(const ConfigParser& parser, const BenchmarkOptions& options,
                                        const MachineInfo& machine) {
  if (machine.ranks > 0 && options.gpus > 1) {
    return parser.invalid("gpus", "contradicts the launcher: each rank has one device", "1");
  }
  if (options.device == "cpu" || (options.device == "auto" && machine.cuda_devices == 0)) return at::Device(at::kCPU);
  const int64_t needed = machine.ranks > 0 && machine.cuda_devices != 1 ? machine.local_ranks : options.gpus;
  if (needed > machine.cuda_devices) {
    return parser.invalid(machine.cuda_devices == 0 || machine.ranks > 0 ? "device" : "gpus",
                          "more devices than available", fmt::format("at most {}", machine.cuda_devices),
                          "--device cpu measures logical replicas");
  }
  const int64_t index = machine.cuda_devices == 1 ? 0 : machine.local_rank;
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

absl::StatusOr<PerfSettings> settings_of(const ConfigParser& parser, const BenchmarkOptions& options,
                                         const MachineInfo& machine) {
  TRAINKIT_ASSIGN_OR_RETURN(const at::Device device, first_device(parser, options, machine));
  const auto fp16 = std::find(options.precision.begin(), options.precision.end(), "fp16");
  if (device.is_cpu() && fp16 != options.precision.end()) {
    return parser.invalid("precision", "fp16 needs a GPU", "fp32 or bf16 on a CPU");
  }
  const HsiModelDefaults defaults = model_defaults(options.model);
  const int64_t patch_size = options.patch_size.value_or(defaults.patch_size);
  if (patch_size % 2 == 0 || patch_size < defaults.min_patch_size) {
    return parser.invalid("patch_size", "invalid for " + options.model,
                          fmt::format("an odd number of at least {}", defaults.min_patch_size));
  }
  const int64_t bands = defaults.pca > 0 && !parser.is_given("bands") ? defaults.pca : options.bands;
  if (bands < defaults.min_bands) {
    return parser.invalid("bands", "too few for " + options.model, fmt::format("at least {}", defaults.min_bands));
  }
  PerfSettings settings;
  settings.model.model = options.model;
  settings.model.bands = bands;
  settings.model.patch_size = patch_size;
  settings.batch_size = options.batch_size;
  settings.devices = {device};
  const Placement placement{.devices = std::vector(static_cast<size_t>(options.gpus), device)};
  settings.num_workers = resolve_num_workers({.num_workers = options.num_workers}, placement, machine);
  settings.prefetch_factor = options.prefetch_factor;
  settings.seconds = options.seconds;
  settings.precision = resolve_precision({.mixed_precision = options.mixed_precision}, device);
  return settings;
}

/// Connects the ranks of a launcher and compares their settings. nullptr without a launcher.
absl::StatusOr<std::shared_ptr<ProcessGroup>> join_ranks(const ConfigParser& parser, at::Device device) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto launch, read_launch_environment());
  if (!launch) return nullptr;
  TRAINKIT_ASSIGN_OR_RETURN(auto group, ProcessGroup::create(*launch, {.device = device}));
  std::vector<DigestField> fields;
  for (const auto& [name, value] : parser.settings()) fields.push_back({name, value});
  TRAINKIT_RETURN_IF_ERROR(group->compare_digest(fields));
  return group;
}

Json json_of(const PerfResult& result) {
  return {{"patches_per_second", result.patches_per_second},
          {"epoch_seconds", result.epoch_seconds},
          {"waiting_share", result.waiting_share},
          {"utilisation", result.utilisation},
          {"swing",
           result.swing
               ? Json{{"min", result.swing->min}, {"max", result.swing->max}, {"period_seconds", result.swing->period}}
               : Json()}};
}

Json header(std::string_view command, const PerfSettings& settings) {
  return {{"command", command},
          {"model", settings.model.model},
          {"patch_size", settings.model.patch_size},
          {"bands", settings.model.bands},
          {"device", settings.devices.front().str()},
          {"batch_size", settings.batch_size},
          {"epoch_rows", settings.epoch_rows},
          {"seconds", settings.seconds},
          {"versions", library_versions()}};
}

absl::Status write_json(const std::string& path, const Json& json) {
  return path.empty() ? absl::OkStatus() : write_file_atomically(Fs::posix(), path, json.dump(2) + "\n");
}

std::string describe(const PerfSettings& settings) {
  return fmt::format("{} on {}, patches of {} x {} x {}, batch {} per device, {} s each; an epoch is {} patches",
                     settings.model.model, settings.devices.front().str(), settings.model.patch_size,
                     settings.model.patch_size, settings.model.bands, settings.batch_size, settings.seconds,
                     settings.epoch_rows);
}

std::string swing_of(const PerfResult& result) {
  if (!result.swing) return "none";
  return fmt::format("{:.0f}-{:.0f}% every {:.1f} s", 100 * result.swing->min, 100 * result.swing->max,
                     result.swing->period);
}

/// Precisions to measure, the first one as the base of comparisons.
std::vector<Precision> precisions_of(const PerfSettings& settings, const BenchmarkOptions& options) {
  std::vector<Precision> asked;
  for (const std::string& name : options.precision) {
    asked.push_back(name == "fp16" ? Precision::kFp16 : name == "bf16" ? Precision::kBf16 : Precision::kFp32);
  }
  if (!asked.empty()) return asked;
  if (settings.devices.front().is_cuda() && !options.mixed_precision) return {Precision::kFp32, Precision::kFp16};
  return {settings.precision};
}

/// Measures 1..N devices of this process, or the ranks of a launcher. Every rank measures; the first one prints.
class Scaling {
 public:
  Scaling(PerfSettings settings, const BenchmarkOptions& options) : settings_(std::move(settings)), options_(options) {}

  absl::StatusOr<int> run() {
    const at::Device first = settings_.devices.front();
    print(describe(settings_));
    if (first.is_cpu() && (options_.gpus > 1 || ranks() > 1)) {
      print("replicas on one machine's processors share them: expect no speed-up");
    }
    print("devices  feed    precision  epoch, s  patches/s  speed-up  efficiency  utilisation  waiting  swing");
    json_ = header("benchmark", settings_);
    json_["results"] = Json::array();
    for (const std::string& feed : options_.feed) {
      settings_.feed = feed == "loader" ? FeedKind::kLoader : FeedKind::kDevice;
      for (const Precision precision : precisions_of(settings_, options_)) {
        settings_.precision = precision;
        TRAINKIT_RETURN_IF_ERROR(measure_devices(feed));
      }
    }
    if (is_first()) TRAINKIT_RETURN_IF_ERROR(write_json(options_.json, json_));
    return 0;
  }

 private:
  int64_t ranks() const { return settings_.group ? settings_.group->world_size() : 1; }
  bool is_first() const { return !settings_.group || settings_.group->rank() == 0; }
  void print(const std::string& line) const {
    if (is_first()) print_line(line);
  }

  absl::Status measure_devices(const std::string& feed) {
    const at::Device first = settings_.devices.front();
    double alone = 0;  // unknown with several ranks
    for (int64_t count = 1; count <= options_.gpus; ++count) {
      settings_.devices.resize(static_cast<size_t>(count), first);
      if (!first.is_cpu() && count > 1) {
        settings_.devices.back() = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(count - 1));
      }
      TRAINKIT_ASSIGN_OR_RETURN(const PerfResult result, measure_training(settings_));
      if (count * ranks() == 1) alone = result.patches_per_second;
      report(count * ranks(), feed, result, alone);
    }
    settings_.devices.resize(1, first);
    return absl::OkStatus();
  }

  void report(int64_t devices, const std::string& feed, const PerfResult& result, double alone) {
    const char* precision = name_of(settings_.precision);
    const double speedup = alone > 0 ? result.patches_per_second / alone : 0;
    const double efficiency = speedup / static_cast<double>(devices);
    const auto known = [&](double value, const char* unit) {
      return alone > 0 ? fmt::format("{:.2f}{}", value, unit) : std::string("-");
    };
    print(fmt::format("{:7}  {:6}  {:9}  {:8.2f}  {:9.0f}  {:>8}  {:>10}  {:10.1f}%  {:6.2f}%  {}", devices, feed,
                      precision, result.epoch_seconds, result.patches_per_second, known(speedup, ""),
                      known(100 * efficiency, "%"), 100 * result.utilisation, 100 * result.waiting_share,
                      swing_of(result)));
    Json entry = {{"devices", devices}, {"ranks", ranks()}, {"feed", feed}, {"precision", precision}};
    entry.update(json_of(result));
    entry["speedup"] = alone > 0 ? Json(speedup) : Json();
    entry["efficiency"] = alone > 0 ? Json(efficiency) : Json();
    json_["results"].push_back(std::move(entry));
  }

  PerfSettings settings_;
  const BenchmarkOptions& options_;
  Json json_;
};

std::string command_line(const PerfSettings& settings, const SweepPoint& point) {
  std::string line = fmt::format("trainkit-hsi --model {} --patch_size {} --batch_size {}", settings.model.model,
                                 settings.model.patch_size, point.batch_size);
  if (point.feed == FeedKind::kDevice) return line + " --feed device";
  return line +
         fmt::format(" --feed loader --num_workers {} --prefetch_factor {}", point.num_workers, point.prefetch_factor);
}

/// Measures workers x prefetch x batch for the loader, and the device feed, which needs no workers.
absl::StatusOr<int> sweep(PerfSettings settings, const BenchmarkOptions& options) {
  std::vector<int64_t> workers = {0};
  for (int64_t count = 1; count <= std::min(available_cpus(), 8); count *= 2) workers.push_back(count);
  std::vector<SweepPoint> points;
  for (const int64_t batch : {32, 128, 256}) {
    points.push_back({.feed = FeedKind::kDevice, .num_workers = 1, .batch_size = batch});
    for (const int64_t count : workers) {
      for (const int64_t prefetch : {2, 4}) {
        if (count == 0 && prefetch > 2) continue;  // without workers there is no prefetch
        points.push_back({FeedKind::kLoader, count, prefetch, batch, 0});
      }
    }
  }
  settings.seconds = options.seconds / 3;
  print_line(fmt::format("{} settings of {:.1f} s each", points.size(), settings.seconds));
  print_line("feed    batch  workers  prefetch  patches/s  waiting");
  Json json = header("sweep", settings);
  json["results"] = Json::array();
  for (SweepPoint& point : points) {
    settings.feed = point.feed;
    settings.batch_size = point.batch_size;
    settings.num_workers = point.num_workers;
    settings.prefetch_factor = point.prefetch_factor;
    TRAINKIT_ASSIGN_OR_RETURN(const PerfResult result, measure_training(settings));
    point.patches_per_second = result.patches_per_second;
    const char* feed = point.feed == FeedKind::kDevice ? "device" : "loader";
    print_line(fmt::format("{:6}  {:5}  {:7}  {:8}  {:9.0f}  {:6.2f}%", feed, point.batch_size, point.num_workers,
                           point.prefetch_factor, point.patches_per_second, 100 * result.waiting_share));
    Json entry = {{"feed", feed},
                  {"batch_size", point.batch_size},
                  {"num_workers", point.num_workers},
                  {"prefetch_factor", point.prefetch_factor}};
    entry.update(json_of(result));
    json["results"].push_back(std::move(entry));
  }
  const std::string best = command_line(settings, recommended(points));
  json["recommended"] = best;
  print_line("recommended: " + best);
  TRAINKIT_RETURN_IF_ERROR(write_json(options.json, json));
  return 0;
}

/// Measures the loader alone, the step alone, and both.
absl::StatusOr<int> quick_perf_test(PerfSettings settings, const BenchmarkOptions& options) {
  print_line(describe(settings));
  Json json = header("quick_perf_test", settings);
  const auto row = [&](const char* name, const PerfResult& result) {
    print_line(fmt::format("{:32} {:9.0f} patches/s, waiting {:5.2f}%", name, result.patches_per_second,
                           100 * result.waiting_share));
    json[name] = json_of(result);
    return result.patches_per_second;
  };
  PerfSettings copied = settings;
  copied.feed = FeedKind::kLoader;
  TRAINKIT_ASSIGN_OR_RETURN(const PerfResult loader, measure_loader(copied));
  const double loader_rate = row("loader alone", loader);
  TRAINKIT_ASSIGN_OR_RETURN(const PerfResult step, measure_step(copied));
  const double step_rate = row("step alone", step);
  TRAINKIT_ASSIGN_OR_RETURN(const PerfResult both, measure_training(copied));
  const double both_rate = row("both, --feed loader", both);
  TRAINKIT_ASSIGN_OR_RETURN(const PerfResult device, measure_training(settings));
  const double device_rate = row("both, --feed device (the default)", device);
  const bool by_device = device_rate >= both_rate;
  const std::string verdict = perf_verdict(loader_rate, step_rate, by_device ? device_rate : both_rate,
                                           settings.num_workers, by_device ? FeedKind::kDevice : FeedKind::kLoader);
  json["verdict"] = verdict;
  print_line("verdict: " + verdict);
  TRAINKIT_RETURN_IF_ERROR(write_json(options.json, json));
  return 0;
}

/// Returns how the files of --json begin, see header().
std::vector<std::string> earlier_results() {
  std::vector<std::string> begins;
  begins.reserve(kCommands.size());
  for (const auto& [name, summary] : kCommands) begins.push_back(fmt::format("{{\n  \"command\": \"{}\",", name));
  return begins;
}

absl::StatusOr<int> run_benchmark_command(const std::string& command, const std::string& summary,
                                          const std::vector<std::string>& words) {
  BenchmarkOptions options;
  ConfigParser parser({.name = "trainkit-hsi " + command,
                       .version = library_versions()["trainkit"],
                       .description = summary,
                       .examples = {"trainkit-hsi benchmark --gpus 4 --json benchmark.json",
                                    "trainkit-hsi benchmark --device cpu --gpus 2 --model cnn3d",
                                    "trainkit-hsi benchmark --feed loader --precision bf16 --seconds 30",
                                    "trainkit launch --nproc_per_node 4 -- trainkit-hsi benchmark",
                                    "trainkit-hsi quick_perf_test", "trainkit-hsi sweep --model cnn2d"}});
  add_flags(parser, options, command);
  TRAINKIT_ASSIGN_OR_RETURN(const Request request, parser.parse(words));
  if (request != Request::kRun) {
    print_line(parser.text(request));
    return 0;
  }
  TRAINKIT_RETURN_IF_ERROR(parser.check_used({}));
  TRAINKIT_RETURN_IF_ERROR(
      trainkit::detail::check_replaced("--json", options.json, earlier_results(), "a result of this command"));
  TRAINKIT_ASSIGN_OR_RETURN(const MachineInfo machine, launched_machine());
  TRAINKIT_ASSIGN_OR_RETURN(PerfSettings settings, settings_of(parser, options, machine));
  torch::manual_seed(0);
  if (command == "benchmark") {
    TRAINKIT_ASSIGN_OR_RETURN(settings.group, join_ranks(parser, settings.devices.front()));
    return Scaling(settings, options).run();
  }
  return command == "sweep" ? sweep(settings, options) : quick_perf_test(settings, options);
}

}  // namespace

std::vector<AppCommand> benchmark_commands() {
  std::vector<AppCommand> commands;
  for (const auto& [name, summary] : kCommands) {
    const auto run = [name = name, summary = summary](const std::vector<std::string>& words) {
      return run_benchmark_command(name, summary, words);
    };
    commands.push_back({name, summary, run});
  }
  return commands;
}

}  // namespace trainkit::hsi
