// PROGRAM plan: the memory, batch and time of a run, also on other devices.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/plan/epoch_time.h"
#include "app/plan/given_memory.h"
#include "app/plan/plan_table.h"
#include "app/program/adjustments.h"
#include "app/program/command_line.h"
#include "app/program/waiting.h"
#include "trainkit/app/placement.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/status.h"
#include "trainkit/nn/functional.h"

namespace trainkit {
namespace {

/// The number of devices to plan for: of --devices, else those that the flags of a run name.
int64_t planned_devices(const TrainerLine& line, const PlanFlags& flags) {
  const RunOptions& run = line.run;
  if (flags.devices && line.parser.is_given("devices")) return *flags.devices;
  if (run.plan_devices > 0) return run.plan_devices;
  if (run.use_multi_gpu && !run.gpu_ids.empty()) return std::ssize(run.gpu_ids);
  return run.parallel > 1 ? run.parallel : flags.devices.value_or(1);
}

absl::StatusOr<std::optional<detail::EpochTimeOptions>> time_options(const ConfigParser& parser,
                                                                     const PlanFlags& flags) {
  const absl::StatusOr<Link> link = parse_link(flags.link);
  if (!link.ok()) {
    const Error error = error_of(link.status()).value();
    return parser.invalid("link", error.problem, error.expected, error.hint);
  }
  const detail::GpuSheet* sheet = detail::find_gpu(flags.gpu);
  if (sheet == nullptr) return std::nullopt;
  detail::EpochTimeOptions options{.gpu = *sheet, .link = *link, .flags = flags};
  if (parser.is_given("efficiency")) options.efficiency_source = "--efficiency";
  return options;
}

/// A dry run on this machine with the devices of the flags.
class Plan {
 public:
  explicit Plan(App& app) : app_(app), line_(app, program(app)) {
    add_plan_flags(line_.parser, flags_);
    line_.parser.set_help("json", "Print JSON instead of a table.");
    line_.parser.set_help("batch_size",
                          "Rows per device and micro-batch. Only this flag replaces auto, the largest that "
                          "fits into memory.");
  }

  absl::StatusOr<int> run(const std::vector<std::string>& words) {
    TRAINKIT_ASSIGN_OR_RETURN(const Request request, line_.parse(words));
    if (request != Request::kRun) {
      print_line(line_.parser.text(request));
      return 0;
    }
    TRAINKIT_RETURN_IF_ERROR(prepare());
    TRAINKIT_ASSIGN_OR_RETURN(const auto time, time_options(line_.parser, flags_));
    std::optional<detail::Waiting> waiting("planning");
    TRAINKIT_ASSIGN_OR_RETURN(const MemoryPlan memory, plan());
    waiting.reset();
    if (!memory.known()) {
      return to_status({.exit_code = ExitCode::kUsage,
                        .id = "plan.unavailable",
                        .where = app_.info().name,
                        .problem = "has no plan: " + memory.unavailable});
    }
    print(memory, time);
    return 0;
  }

 private:
  static ProgramInfo program(const App& app) {
    const std::string name = app.info().name;
    ProgramInfo program = shared_help(
        {.name = name + " plan",
         .description =
             "Predicts the memory of a training step, the batch size that fits and the time of an epoch, "
             "also for devices that this machine does not have. Takes the flags of a run and writes nothing.",
         .examples = {name + " plan --gpu_memory 24GiB --devices 3", name + " plan --gpu rtx4090 --devices 8 --json"},
         .help_flags = {"devices", "gpu", "efficiency", "link", "workers", "row_rate", "read_gbs"}});
    program.shared_flags = {"gpu_memory", "batch_size", "global_batch_size", "shard", "data_dir", "json"};
    return program;
  }

  /// Sets what a plan decides, and checks the flags.
  absl::Status prepare() {
    RunOptions& run = line_.run;
    ConfigParser& parser = line_.parser;
    TRAINKIT_ASSIGN_OR_RETURN(int64_t device_bytes, detail::given_memory(parser, run));
    const auto memory_of_sheet = [&]() -> std::string {
      const detail::GpuSheet* sheet = detail::find_gpu(flags_.gpu);
      return sheet ? sheet->memory : "";
    };
    if (device_bytes == 0) device_bytes = parse_size(memory_of_sheet()).value_or(0);
    if (const AppInfo info = app_.info(); info.plan_example) example_ = info.plan_example(parser, device_bytes);
    const bool had_memory = device_bytes > 0;
    parser.set_defaults(example_.settings, "plan");
    assumes_memory_ = !had_memory && !run.gpu_memory.empty();
    if (parser.is_default("gpu_memory") && !memory_of_sheet().empty()) {
      run.gpu_memory = memory_of_sheet();
      assumes_memory_ = false;
    }
    run.dry_run = true;
    if (!parser.source("batch_size").starts_with("--")) run.batch_size = {};
    // One process plans for all devices, which this machine need not have.
    run.plan_devices = planned_devices(line_, flags_);
    run.strategy = Strategy::kAuto;
    run.use_multi_gpu = false;
    run.gpu_ids.clear();
    run.parallel = 1;
    line_.machine = MachineInfo::here();
    return line_.check({{modes::kTrain}, "in " + app_.info().name + " plan"});
  }

  absl::StatusOr<MemoryPlan> plan() {
    RunOptions& run = line_.run;
    use_fast_kernels();
    TRAINKIT_ASSIGN_OR_RETURN(Placement placement, resolve_devices(line_.parser, run, line_.machine));
    TRAINKIT_ASSIGN_OR_RETURN(placement.batch, resolve_batch(line_.parser, run, placement.batch.replicas));
    share_processors(run, placement, line_.machine, app_.read_cost());
    RunContext context{line_.parser, run, line_.machine, placement};
    TRAINKIT_ASSIGN_OR_RETURN(const TrainingTask task, detail::open_task(app_, context));
    return plan_memory(line_.parser, run, line_.machine, task.recipe, placement);
  }

  void print(const MemoryPlan& memory, const std::optional<detail::EpochTimeOptions>& time) const {
    std::optional<detail::EpochTime> epoch;
    if (time) epoch = detail::predict_epoch(memory, *time);
    if (!line_.run.json) {
      const std::string table = detail::plan_table(example_, memory, assumes_memory_);
      std::fputs((table + (epoch ? detail::describe_epoch(memory, *time, *epoch) : "")).c_str(), stdout);
      return;
    }
    nlohmann::ordered_json json = detail::memory_json(memory);
    const std::string name = app_.info().name;
    constexpr std::string_view kBundled = "trainkit-";
    json["app"] = name.starts_with(kBundled) ? name.substr(kBundled.size()) : name;
    if (!example_.data.empty()) json["assumed_data"] = example_.data;
    if (!example_.parts.empty()) json["guide"] = detail::guide_json(example_, memory);
    if (epoch) json["epoch"] = detail::epoch_json(*time, *epoch);
    print_line(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }

  App& app_;
  TrainerLine line_;
  PlanFlags flags_;
  PlanExample example_;
  bool assumes_memory_ = false;
};

}  // namespace

AppCommand plan_command(App& app) {
  return {"plan", "Memory, batch and time of a run on other devices.",
          [&app](const std::vector<std::string>& words) { return Plan(app).run(words); }};
}

}  // namespace trainkit
