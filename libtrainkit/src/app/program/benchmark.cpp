#include "trainkit/app/benchmark.h"

#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

#include "app/program/adjustments.h"
#include "app/program/command_line.h"
#include "trainkit/app/app.h"
#include "trainkit/core/status.h"
#include "trainkit/data/sampler.h"
#include "trainkit/nn/functional.h"
#include "trainkit/train/train_step.h"

namespace trainkit {
namespace {

using Clock = std::chrono::steady_clock;

/// Rows of one call, and whether it was the last one.
struct Piece {
  int64_t rows = 0;
  bool is_last = false;
};

absl::StatusOr<Batch> next_batch(Prefetcher& loader) {
  while (true) {
    TRAINKIT_ASSIGN_OR_RETURN(std::optional<Batch> batch, loader.next());
    if (batch) return *std::move(batch);  // continue after the end of an epoch
    if (loader.batches_per_epoch() == 0) return absl::InvalidArgumentError("an epoch has no full batch");
  }
}

/// A training that is measured.
class SpeedTest {
 public:
  SpeedTest(const TrainingTask& task, const RunOptions& run, const MachineInfo& machine, const Placement& placement,
            double seconds)
      : task_(task), run_(run), machine_(machine), placement_(placement), seconds_(seconds) {}

  absl::StatusOr<Speed> measure(Measured measured) {
    const auto order = task_.order ? task_.order : std::make_shared<RandomSampler>(task_.training_set->size());
    TRAINKIT_ASSIGN_OR_RETURN(loader_, training_loader(task_.training_set, order, run_, machine_, placement_));
    if (measured == Measured::kLoader) {
      return time_pieces([&](bool is_late) -> absl::StatusOr<Piece> {
        TRAINKIT_ASSIGN_OR_RETURN(const Batch batch, next_batch(*loader_));
        return Piece{batch.size(), is_late};
      });
    }
    TRAINKIT_ASSIGN_OR_RETURN(
        const auto devices,
        DeviceReplicator::create(task_.recipe.make_model, replicator_options(run_, placement_, task_.recipe)));
    const auto optimizer =
        task_.make_optimizer ? task_.make_optimizer(*devices->module()) : task_.recipe.make_optimizer();
    const LossFunction& loss = task_.loss ? task_.loss : task_.recipe.loss;
    TrainStep step(*devices, *optimizer,
                   {.precision = resolve_precision(run_, placement_.device()), .grad_clip = run_.grad_clip});
    std::optional<Batch> batch;
    return time_pieces([&](bool is_late) -> absl::StatusOr<Piece> {
      if (measured == Measured::kBoth) batch.reset();
      if (!batch) {
        TRAINKIT_ASSIGN_OR_RETURN(batch, next_batch(*loader_));
      }
      if (is_late) step.request_stop(1);  // ranks end after the same step
      step(*batch, loss);
      return Piece{batch->size(), step.agreed_stop() != 0};
    });
  }

 private:
  /// Returns a monitor whose windows are short enough to show a swing in the time of the measurement.
  Monitor watch() const {
    MonitorSources sources;
    for (const at::Device device : placement_.devices) {
      if (device.is_cuda()) sources.cuda_devices.push_back(std::max<int>(device.index(), 0));
    }
    const auto window = static_cast<int64_t>(1000 * seconds_ / 60);
    return Monitor(*loader_, sources, {.window = std::chrono::milliseconds(std::clamp<int64_t>(window, 50, 1000))});
  }

  /// Calls `piece` for the time of the measurement after the warm-up. The argument is true once the time is up.
  absl::StatusOr<Speed> time_pieces(const std::function<absl::StatusOr<Piece>(bool)>& piece) const {
    const auto since = [](Clock::time_point start) {
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    const auto repeat = [&](double seconds, const std::function<void()>& on_first) -> absl::StatusOr<int64_t> {
      const auto start = Clock::now();
      int64_t rows = 0;
      for (Piece done; !done.is_last;) {
        TRAINKIT_ASSIGN_OR_RETURN(done, piece(since(start) >= seconds));
        if (rows == 0) on_first();
        rows += done.rows;
      }
      for (const at::Device device : placement_.devices) {
        if (!device.is_cpu()) at::accelerator::synchronizeDevice(std::max<c10::DeviceIndex>(device.index(), 0));
      }
      return rows;
    };
    TRAINKIT_RETURN_IF_ERROR(repeat(seconds_ / 10, [] {}).status());
    Monitor monitor = watch();
    const auto start = Clock::now();
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t rows, repeat(seconds_, [&] { monitor.begin(); }));
    const double seconds = since(start);
    const MonitorReport report = monitor.stop();
    Speed speed{.rows_per_second = static_cast<double>(rows * placement_.ranks()) / seconds,
                .waiting_share = report.split.wait,
                .utilisation = report.utilisation,
                .swing = report.swing};
    speed.epoch_seconds = static_cast<double>(task_.training_set->size()) / speed.rows_per_second;
    return speed;
  }

  const TrainingTask& task_;
  const RunOptions& run_;
  const MachineInfo& machine_;
  const Placement& placement_;
  const double seconds_;
  std::unique_ptr<Prefetcher> loader_;
};

/// Loader, step and both, with the data and the flags of a run.
class BenchmarkLine {
 public:
  explicit BenchmarkLine(App& app) : app_(app), line_(app, program(app)) {
    line_.parser.add("seconds", &seconds_,
                     {.help = "Time of each measurement in seconds.", .group = "Benchmark", .max = 600, .above = 0});
    line_.parser.set_help("json", "Print JSON instead of a table.");
  }

  absl::StatusOr<int> run(const std::vector<std::string>& words) {
    TRAINKIT_ASSIGN_OR_RETURN(const Request request, line_.parse(words));
    if (request != Request::kRun) {
      print_line(line_.parser.text(request));
      return 0;
    }
    RunOptions& run = line_.run;
    run.dry_run = true;       // writes nothing
    run.plan_memory = false;  // but for what the plan chooses
    TRAINKIT_RETURN_IF_ERROR(line_.check({{modes::kTrain}, "in " + app_.info().name + " benchmark"}));
    use_fast_kernels();
    ProgramState ranks;
    TRAINKIT_ASSIGN_OR_RETURN(Placement placement, place_run(line_.parser, run, line_.machine, ranks));
    share_processors(run, placement, line_.machine, app_.read_cost());
    RunContext context{line_.parser, run, line_.machine, placement};
    TRAINKIT_ASSIGN_OR_RETURN(TrainingTask task, detail::open_task(app_, context));
    TRAINKIT_ASSIGN_OR_RETURN(const MemoryPlan memory,
                              plan_memory(line_.parser, run, line_.machine, task.recipe, placement));
    app_.apply_plan(memory);
    TRAINKIT_ASSIGN_OR_RETURN(const int interrupted, app_.prepare(context, task));
    return interrupted != 0 ? interrupted : measure(context, task);
  }

 private:
  static ProgramInfo program(const App& app) {
    const std::string name = app.info().name;
    ProgramInfo program = shared_help(
        {.name = name + " benchmark",
         .description = "Measures the speed of the loader alone, of the step alone, and of both, and names what limits "
                        "training. Takes the flags of a run and writes nothing.",
         .examples = {name + " benchmark --seconds 10", "trainkit launch --nproc_per_node 2 -- " + name + " benchmark"},
         .help_flags = {"seconds"}});
    program.shared_flags = {"data_dir", "batch_size", "num_workers", "device", "parallel", "precision", "json"};
    return program;
  }

  absl::StatusOr<int> measure(const RunContext& context, const TrainingTask& task) const {
    const RunOptions& run = context.run;
    const Placement& placement = context.placement;
    const int64_t workers = resolve_num_workers(run, placement, context.machine);
    nlohmann::ordered_json json = {{"program", app_.info().name},
                                   {"device", placement.device().str()},
                                   {"replicas", placement.batch.replicas},
                                   {"batch_size", placement.batch.batch_size},
                                   {"precision", name_of(resolve_precision(run, placement.device()))},
                                   {"num_workers", workers},
                                   {"epoch_rows", task.training_set->size()},
                                   {"seconds", seconds_}};
    const auto say = [&](const std::string& line) {
      if (!run.json) context.print(line);
    };
    say(fmt::format("{} x {}, {} rows per device in {}, {} workers, {} s each; an epoch is {} rows",
                    placement.batch.replicas, placement.device().str(), placement.batch.batch_size,
                    json["precision"].get<std::string>(), workers, seconds_, task.training_set->size()));
    const std::pair<const char*, Measured> parts[] = {
        {"loader", Measured::kLoader}, {"step", Measured::kStep}, {"both", Measured::kBoth}};
    for (const auto& [name, part] : parts) {
      TRAINKIT_ASSIGN_OR_RETURN(const Speed speed,
                                measure_speed(task, part, run, context.machine, placement, seconds_));
      json[name] = {{"rows_per_second", speed.rows_per_second},
                    {"epoch_seconds", speed.epoch_seconds},
                    {"waiting_share", speed.waiting_share},
                    {"utilisation", speed.utilisation}};
      say(fmt::format("{:12}  {:10.0f} rows/s  {:9.2f} s per epoch  {:6.2f}% waiting",
                      part == Measured::kBoth ? "both" : fmt::format("{} alone", name), speed.rows_per_second,
                      speed.epoch_seconds, 100 * speed.waiting_share));
    }
    const auto rate = [&](const char* name) { return json[name]["rows_per_second"].get<double>(); };
    json["verdict"] = speed_verdict(rate("loader"), rate("step"), rate("both"), workers);
    say("verdict: " + json["verdict"].get<std::string>());
    if (run.json) context.print(json.dump(2));
    return 0;
  }

  App& app_;
  TrainerLine line_;
  double seconds_ = 3;
};

}  // namespace

absl::StatusOr<Speed> measure_speed(const TrainingTask& task, Measured measured, const RunOptions& run,
                                    const MachineInfo& machine, const Placement& placement, double seconds) {
  return SpeedTest(task, run, machine, placement, seconds).measure(measured);
}

std::string speed_verdict(double loader, double step, double both, int64_t num_workers, const std::string& setting,
                          const std::string& remedy) {
  const double share = both / step;
  if (share >= 0.9) {
    return fmt::format("the step is not starved: {}training reaches {:.0f}% of the rate of the step alone", setting,
                       100 * share);
  }
  if (loader < 1.1 * step) {
    return fmt::format("the loader starves the step (it delivers {:.0f}% of the step's rate): use --num_workers {}{}",
                       100 * loader / step, std::max<int64_t>(2 * num_workers, 2), remedy);
  }
  return fmt::format(
      "loader and step are fast enough alone but compete for the processors (together {:.0f}% of the step's rate "
      "alone): use fewer --num_workers{}",
      100 * share, remedy);
}

AppCommand benchmark_command(App& app) {
  return {"benchmark", "Speed of the loader, of the step and of both; names the bottleneck.",
          [&app](const std::vector<std::string>& words) { return BenchmarkLine(app).run(words); }};
}

}  // namespace trainkit
