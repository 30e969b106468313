#include "hsi_classification/benchmark.h"

#include <fmt/format.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "hsi_classification/perf.h"
#include "trainkit/app/app.h"
#include "trainkit/app/benchmark.h"
#include "trainkit/app/placement.h"
#include "trainkit/config/config.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/status.h"
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
  int64_t batch_size = 32, prefetch_factor = 2;
  /// Devices and workers; `parallel` is --gpus.
  RunOptions run = {};
  std::vector<std::string> feed = {"device", "loader"};
  std::vector<std::string> precision = {};
  double seconds = 3;
  std::string json = {};
};

void add_flags(ConfigParser& parser, BenchmarkOptions& o, std::string_view command) {
  parser.add("model", &o.model, {.help = "Network.", .choices = model_names()});
  parser.add("patch_size", &o.patch_size,
             {.help = "Rows and columns of a patch, odd. Default: that of the model.", .min = 1, .max = 255});
  parser.add("bands", &o.bands, {.help = "Bands of the random scene.", .min = 1, .max = 4096});
  parser.add("device", &o.run.device, {.help = "auto, cpu or cuda.", .choices = {"auto", "cpu", "cuda"}});
  parser.add("mixed_precision", &o.run.mixed_precision,
             {.help = "fp16 on CUDA, bf16 on the CPU.",
              .needs = command == "benchmark" ? std::vector<OptionNeed>{{"precision", {"", "[]"}}}
                                              : std::vector<OptionNeed>{}});
  parser.add("seconds", &o.seconds, {.help = "Measurement time per setting in seconds.", .max = 600, .above = 0});
  parser.add("json", &o.json, {.help = "Also write the results to this file.", .path = PathKind::kOutput});
  if (command == "benchmark") {
    parser.add("gpus", &o.run.parallel,
               {.help = "Measure 1, 2, ..., N devices; logical replicas on the CPU.",
                .aliases = {"parallel"},
                .min = 1,
                .max = 64});
  }
  if (command == "sweep") return;
  parser.add("batch_size", &o.batch_size, {.help = "Patches per device and step.", .min = 1, .max = 1 << 20});
  parser.add("num_workers", &o.run.num_workers, {.help = "Loader threads.", .min = 0, .max = 1024});
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

/// What is measured.
struct Bench {
  RandomScene scene;
  RunOptions run;
  MachineInfo machine;
  Placement placement;
  double seconds = 3;

  absl::StatusOr<Speed> measure(Measured measured) const {
    return measure_speed(make_bench(scene, placement.devices), measured, run, machine, placement, seconds);
  }
};

absl::StatusOr<RandomScene> scene_of(const ConfigParser& parser, const BenchmarkOptions& options) {
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
  RandomScene scene;
  scene.model.model = options.model;
  scene.model.bands = bands;
  scene.model.patch_size = patch_size;
  return scene;
}

/// Connects the ranks of a launcher, which compare their settings.
absl::StatusOr<Bench> open_bench(const ConfigParser& parser, const BenchmarkOptions& options, ProgramState& program) {
  Bench bench;
  bench.run = options.run;
  bench.seconds = options.seconds;
  bench.run.batch_size = {options.batch_size};
  bench.run.prefetch_factor = {options.prefetch_factor};
  TRAINKIT_ASSIGN_OR_RETURN(bench.scene, scene_of(parser, options));
  TRAINKIT_ASSIGN_OR_RETURN(bench.machine, launched_machine());
  TRAINKIT_ASSIGN_OR_RETURN(bench.placement, place_run(parser, bench.run, bench.machine, program));
  const auto fp16 = std::find(options.precision.begin(), options.precision.end(), "fp16");
  if (bench.placement.device().is_cpu() && fp16 != options.precision.end()) {
    return parser.invalid("precision", "fp16 needs a GPU", "fp32 or bf16 on a CPU");
  }
  bench.run.num_workers = {resolve_num_workers(bench.run, bench.placement, bench.machine)};
  return bench;
}

Json json_of(const Speed& result) {
  return {{"patches_per_second", result.rows_per_second},
          {"epoch_seconds", result.epoch_seconds},
          {"waiting_share", result.waiting_share},
          {"utilisation", result.utilisation},
          {"swing",
           result.swing
               ? Json{{"min", result.swing->min}, {"max", result.swing->max}, {"period_seconds", result.swing->period}}
               : Json()}};
}

int64_t batch_size_of(const Bench& bench) { return *bench.run.batch_size.value; }

Json header(std::string_view command, const Bench& bench) {
  return {{"command", command},
          {"model", bench.scene.model.model},
          {"patch_size", bench.scene.model.patch_size},
          {"bands", bench.scene.model.bands},
          {"device", bench.placement.device().str()},
          {"batch_size", batch_size_of(bench)},
          {"epoch_rows", bench.scene.epoch_rows},
          {"seconds", bench.seconds},
          {"versions", library_versions()}};
}

absl::Status write_json(const std::string& path, const Json& json) {
  return path.empty() ? absl::OkStatus() : write_file_atomically(Fs::posix(), path, json.dump(2) + "\n");
}

std::string describe(const Bench& bench) {
  const HsiModelOptions& model = bench.scene.model;
  return fmt::format("{} on {}, patches of {} x {} x {}, batch {} per device, {} s each; an epoch is {} patches",
                     model.model, bench.placement.device().str(), model.patch_size, model.patch_size, model.bands,
                     batch_size_of(bench), bench.seconds, bench.scene.epoch_rows);
}

std::string swing_of(const Speed& result) {
  if (!result.swing) return "none";
  return fmt::format("{:.0f}-{:.0f}% every {:.1f} s", 100 * result.swing->min, 100 * result.swing->max,
                     result.swing->period);
}

/// Precisions to measure, the first one as the base of comparisons.
std::vector<Precision> precisions_of(const Bench& bench, const BenchmarkOptions& options) {
  std::vector<Precision> asked;
  for (const std::string& name : options.precision) {
    asked.push_back(name == "fp16" ? Precision::kFp16 : name == "bf16" ? Precision::kBf16 : Precision::kFp32);
  }
  if (!asked.empty()) return asked;
  const at::Device device = bench.placement.device();
  if (device.is_cuda() && !bench.run.mixed_precision) return {Precision::kFp32, Precision::kFp16};
  return {resolve_precision(bench.run, device)};
}

/// Measures 1..N devices of this process, or the ranks of a launcher. Every rank measures; the first one prints.
class Scaling {
 public:
  Scaling(Bench bench, const BenchmarkOptions& options) : bench_(std::move(bench)), options_(options) {}

  absl::StatusOr<int> run() {
    const Placement& placement = bench_.placement;
    print(describe(bench_));
    if (placement.device().is_cpu() && placement.batch.replicas > 1) {
      print("replicas on one machine's processors share them: expect no speed-up");
    }
    print("devices  feed    precision  epoch, s  patches/s  speed-up  efficiency  utilisation  waiting  swing");
    json_ = header("benchmark", bench_);
    json_["results"] = Json::array();
    for (const std::string& feed : options_.feed) {
      bench_.scene.feed = feed == "loader" ? FeedKind::kLoader : FeedKind::kDevice;
      for (const Precision precision : precisions_of(bench_, options_)) {
        TRAINKIT_RETURN_IF_ERROR(measure_devices(feed, precision));
      }
    }
    if (placement.is_first()) TRAINKIT_RETURN_IF_ERROR(write_json(options_.json, json_));
    return 0;
  }

 private:
  void print(const std::string& line) const {
    if (bench_.placement.is_first()) print_line(line);
  }

  absl::Status measure_devices(const std::string& feed, Precision precision) {
    double alone = 0;  // unknown with several ranks
    Bench part = bench_;
    part.run.precision = precision;
    part.placement.strategy = Strategy::kAuto;
    for (int64_t count = 1; count <= std::ssize(bench_.placement.devices); ++count) {
      const auto first = bench_.placement.devices.begin();
      part.placement.devices.assign(first, first + count);
      const int64_t replicas = count * part.placement.ranks();
      part.placement.batch.replicas = replicas;
      TRAINKIT_ASSIGN_OR_RETURN(const Speed result, part.measure(Measured::kBoth));
      if (replicas == 1) alone = result.rows_per_second;
      report(replicas, feed, name_of(precision), result, alone);
    }
    return absl::OkStatus();
  }

  void report(int64_t devices, const std::string& feed, const char* precision, const Speed& result, double alone) {
    const double speedup = alone > 0 ? result.rows_per_second / alone : 0;
    const double efficiency = speedup / static_cast<double>(devices);
    const auto known = [&](double value, const char* unit) {
      return alone > 0 ? fmt::format("{:.2f}{}", value, unit) : std::string("-");
    };
    print(fmt::format("{:7}  {:6}  {:9}  {:8.2f}  {:9.0f}  {:>8}  {:>10}  {:10.1f}%  {:6.2f}%  {}", devices, feed,
                      precision, result.epoch_seconds, result.rows_per_second, known(speedup, ""),
                      known(100 * efficiency, "%"), 100 * result.utilisation, 100 * result.waiting_share,
                      swing_of(result)));
    Json entry = {{"devices", devices}, {"ranks", bench_.placement.ranks()}, {"feed", feed}, {"precision", precision}};
    entry.update(json_of(result));
    entry["speedup"] = alone > 0 ? Json(speedup) : Json();
    entry["efficiency"] = alone > 0 ? Json(efficiency) : Json();
    json_["results"].push_back(std::move(entry));
  }

  Bench bench_;
  const BenchmarkOptions& options_;
  Json json_;
};

std::string command_line(const HsiModelOptions& model, const SweepPoint& point) {
  std::string line = fmt::format("trainkit-hsi --model {} --patch_size {} --batch_size {}", model.model,
                                 model.patch_size, point.batch_size);
  if (point.feed == FeedKind::kDevice) return line + " --feed device";
  return line +
         fmt::format(" --feed loader --num_workers {} --prefetch_factor {}", point.num_workers, point.prefetch_factor);
}

/// Measures workers x prefetch x batch for the loader, and the device feed, which needs no workers.
absl::StatusOr<int> sweep(Bench bench, const BenchmarkOptions& options) {
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
  bench.seconds = options.seconds / 3;
  print_line(fmt::format("{} settings of {:.1f} s each", points.size(), bench.seconds));
  print_line("feed    batch  workers  prefetch  patches/s  waiting");
  Json json = header("sweep", bench);
  json["results"] = Json::array();
  for (SweepPoint& point : points) {
    bench.scene.feed = point.feed;
    bench.run.batch_size = {point.batch_size};
    bench.placement.batch.batch_size = point.batch_size;
    bench.run.num_workers = {point.num_workers};
    bench.run.prefetch_factor = {point.prefetch_factor};
    TRAINKIT_ASSIGN_OR_RETURN(const Speed result, bench.measure(Measured::kBoth));
    point.patches_per_second = result.rows_per_second;
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
  const std::string best = command_line(bench.scene.model, recommended(points));
  json["recommended"] = best;
  print_line("recommended: " + best);
  TRAINKIT_RETURN_IF_ERROR(write_json(options.json, json));
  return 0;
}

/// Measures the loader alone, the step alone, and both.
absl::StatusOr<int> quick_perf_test(const Bench& bench, const BenchmarkOptions& options) {
  print_line(describe(bench));
  Json json = header("quick_perf_test", bench);
  const auto rate = [&](const char* name, FeedKind feed, Measured measured) -> absl::StatusOr<double> {
    Bench part = bench;
    part.scene.feed = feed;
    TRAINKIT_ASSIGN_OR_RETURN(const Speed result, part.measure(measured));
    print_line(fmt::format("{:32} {:9.0f} patches/s, waiting {:5.2f}%", name, result.rows_per_second,
                           100 * result.waiting_share));
    json[name] = json_of(result);
    return result.rows_per_second;
  };
  TRAINKIT_ASSIGN_OR_RETURN(const double loader, rate("loader alone", FeedKind::kLoader, Measured::kLoader));
  TRAINKIT_ASSIGN_OR_RETURN(const double step, rate("step alone", FeedKind::kLoader, Measured::kStep));
  TRAINKIT_ASSIGN_OR_RETURN(const double both, rate("both, --feed loader", FeedKind::kLoader, Measured::kBoth));
  TRAINKIT_ASSIGN_OR_RETURN(const double device,
                            rate("both, --feed device (the default)", FeedKind::kDevice, Measured::kBoth));
  const bool by_device = device >= both;
  const std::string verdict = perf_verdict(loader, step, by_device ? device : both, *bench.run.num_workers.value,
                                           by_device ? FeedKind::kDevice : FeedKind::kLoader);
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
  TRAINKIT_RETURN_IF_ERROR(check_replaced("--json", options.json, earlier_results(), "a result of this command"));
  ProgramState ranks;
  TRAINKIT_ASSIGN_OR_RETURN(Bench bench, open_bench(parser, options, ranks));
  torch::manual_seed(0);
  if (command == "benchmark") return Scaling(std::move(bench), options).run();
  return command == "sweep" ? sweep(std::move(bench), options) : quick_perf_test(bench, options);
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
