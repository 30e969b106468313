#include "hsi_classification/benchmark.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>

#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/summary.h"

namespace trainkit::hsi {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> kCommands = {"benchmark", "sweep", "quick_perf_test"};

struct BenchmarkOptions {
  std::string model = "cnn2d";
  std::optional<int64_t> patch_size = {};
  int64_t bands = 200;
  int64_t batch_size = 32;
  int64_t gpus = 1;
  std::string device = "auto";
  std::string feed = "device";
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
  parser.add("mixed_precision", &o.mixed_precision, {.help = "fp16 on CUDA, bf16 on the CPU."});
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
               {.help = "Source of patches: gathered on the device, or copied by the loader.",
                .choices = {"device", "loader"}});
  }
}

absl::StatusOr<PerfSettings> settings_of(const ConfigParser& parser, const BenchmarkOptions& options,
                                         const Machine& machine) {
  const bool cuda = options.device == "cuda" || (options.device == "auto" && machine.cuda_devices > 0);
  if (cuda && options.gpus > machine.cuda_devices) {
    return parser.invalid(options.device == "cuda" && machine.cuda_devices == 0 ? "device" : "gpus",
                          "more devices than available", fmt::format("at most {}", machine.cuda_devices),
                          "--device cpu measures logical replicas");
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
  settings.devices = {cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU)};
  settings.feed = options.feed == "loader" ? FeedKind::kLoader : FeedKind::kDevice;
  const DevicePlan plan{.devices = std::vector(static_cast<size_t>(options.gpus), settings.devices.front())};
  settings.num_workers = resolve_num_workers({.num_workers = options.num_workers}, plan, machine);
  settings.prefetch_factor = options.prefetch_factor;
  settings.seconds = options.seconds;
  if (options.mixed_precision) settings.precision = cuda ? Precision::kFp16 : Precision::kBf16;
  return settings;
}

void print_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

Json json_of(const PerfResult& result) {
  return {{"patches_per_second", result.patches_per_second},
          {"epoch_seconds", result.epoch_seconds},
          {"waiting_share", result.waiting_share},
          {"utilisation", result.utilisation}};
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

/// Measures 1..N devices.
absl::StatusOr<int> benchmark(PerfSettings settings, const BenchmarkOptions& options) {
  print_line(describe(settings));
  const at::Device first = settings.devices.front();
  if (first.is_cpu() && options.gpus > 1) print_line("logical replicas share the processors: expect no speed-up");
  print_line("devices  epoch, s  patches/s  speed-up  efficiency  utilisation  waiting");
  Json json = header("benchmark", settings);
  json["results"] = Json::array();
  double alone = 0;
  for (int64_t count = 1; count <= options.gpus; ++count) {
    settings.devices.clear();
    for (int64_t i = 0; i < count; ++i) {
      settings.devices.push_back(first.is_cpu() ? first : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(i)));
    }
    TRAINKIT_ASSIGN_OR_RETURN(const PerfResult result, measure_training(settings));
    if (count == 1) alone = result.patches_per_second;
    const double speedup = result.patches_per_second / alone;
    const double efficiency = speedup / static_cast<double>(count);
    print_line(fmt::format("{:7}  {:8.2f}  {:9.0f}  {:8.2f}  {:9.1f}%  {:10.1f}%  {:6.2f}%", count,
                           result.epoch_seconds, result.patches_per_second, speedup, 100 * efficiency,
                           100 * result.utilisation, 100 * result.waiting_share));
    Json entry = {{"devices", count}};
    entry.update(json_of(result));
    entry["speedup"] = speedup;
    entry["efficiency"] = efficiency;
    json["results"].push_back(std::move(entry));
  }
  TRAINKIT_RETURN_IF_ERROR(write_json(options.json, json));
  return 0;
}

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

}  // namespace

std::string perf_verdict(double loader, double step, double both, int64_t num_workers, FeedKind feed) {
  const double share = both / step;
  const std::string used = feed == FeedKind::kDevice ? "--feed device" : "--feed loader";
  if (share >= 0.9) {
    return fmt::format("the step is not starved: with {} training reaches {:.0f}% of the rate of the step alone", used,
                       100 * share);
  }
  if (loader < 1.1 * step) {
    return fmt::format(
        "the loader starves the step (it delivers {:.0f}% of the step's rate): use --feed device if the cube fits, "
        "else "
        "--num_workers {}",
        100 * loader / step, std::max<int64_t>(2 * num_workers, 2));
  }
  return fmt::format(
      "loader and step are fast enough alone but compete for the processors (together {:.0f}% of the step's rate "
      "alone): use fewer --num_workers or --feed device",
      100 * share);
}

SweepPoint recommended(const std::vector<SweepPoint>& points) {
  TORCH_CHECK(!points.empty(), "nothing was measured");
  double fastest = 0;
  for (const SweepPoint& point : points) fastest = std::max(fastest, point.patches_per_second);
  const auto cost = [](const SweepPoint& point) {
    const bool loader = point.feed == FeedKind::kLoader;
    return std::tuple(point.batch_size, loader ? point.num_workers : 0, loader ? point.prefetch_factor : 0, loader);
  };
  const SweepPoint* best = nullptr;
  for (const SweepPoint& point : points) {
    if (point.patches_per_second < 0.97 * fastest) continue;
    if (!best || cost(point) < cost(*best)) best = &point;
  }
  return *best;
}

bool is_benchmark_command(int argc, const char* const* argv) {
  return argc > 1 && std::find(kCommands.begin(), kCommands.end(), argv[1]) != kCommands.end();
}

absl::StatusOr<int> run_benchmark_command(int argc, const char* const* argv) {
  const std::string command = argv[1];
  BenchmarkOptions options;
  ConfigParser parser(
      {.name = "trainkit-hsi " + command,
       .version = library_versions()["trainkit"],
       .description = command == "benchmark" ? "Training speed on 1, 2, ... devices."
                      : command == "sweep"
                          ? "Training speed over workers, prefetch and batch; prints the recommended flags."
                          : "Finds the bottleneck (loader or step) in under a minute.",
       .examples = {"trainkit-hsi benchmark --gpus 4 --json benchmark.json",
                    "trainkit-hsi benchmark --device cpu --gpus 2 --model cnn3d", "trainkit-hsi quick_perf_test",
                    "trainkit-hsi sweep --model cnn2d"}});
  add_flags(parser, options, command);
  TRAINKIT_ASSIGN_OR_RETURN(const Request request, parser.parse(std::vector<std::string>(argv + 2, argv + argc)));
  if (request != Request::kRun) {
    print_line(parser.text(request));
    return 0;
  }
  const Machine machine = Machine::here();
  TRAINKIT_ASSIGN_OR_RETURN(const PerfSettings settings, settings_of(parser, options, machine));
  torch::manual_seed(0);
  if (command == "benchmark") return benchmark(settings, options);
  return command == "sweep" ? sweep(settings, options) : quick_perf_test(settings, options);
}

}  // namespace trainkit::hsi
