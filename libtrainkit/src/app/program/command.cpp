#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "app/program/command_line.h"
#include "app/program/run_checks.h"
#include "app/run/resume.h"
#include "trainkit/app/app.h"
#include "trainkit/app/placement.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/nn/functional.h"
#include "trainkit/report/summary.h"

namespace trainkit {
namespace {

using Clock = std::chrono::steady_clock;

/// Resets the settings of where the run trained: they say nothing about this machine.
void forget_placement(const ConfigParser& parser, RunOptions& run) {
  const RunOptions defaults;
  const auto reset = [&](const char* name, auto RunOptions::*member) {
    if (!parser.source(name).starts_with("--")) run.*member = defaults.*member;
  };
  reset("device", &RunOptions::device);
  reset("strategy", &RunOptions::strategy);
  reset("use_multi_gpu", &RunOptions::use_multi_gpu);
  reset("gpu_ids", &RunOptions::gpu_ids);
  reset("parallel", &RunOptions::parallel);
  reset("resume", &RunOptions::resume);
}

/// Returns the precision of the run. A run in fp16 on a GPU is used in fp32 on a CPU, which lacks fp16.
absl::StatusOr<Precision> precision_of(const ConfigParser& parser, RunOptions& run, at::Device device) {
  if (run.precision == Precision::kFp16 && device.is_cpu()) {
    if (parser.source("precision").starts_with("--")) {
      return parser.invalid("precision", "fp16 needs a GPU", "fp32 or bf16 on a CPU");
    }
    run.precision = Precision::kFp32;
  }
  return resolve_precision(run, device);
}

absl::StatusOr<PredictorOptions> predictor_options(const ConfigParser& parser, RunOptions& run, ReadCost cost) {
  TRAINKIT_ASSIGN_OR_RETURN(const MachineInfo machine, launched_machine());
  if (machine.ranks > 1) {
    return bad_word("the launcher", "this command runs in one process", "no launcher",
                    "--use_multi_gpu or --parallel N uses several devices");
  }
  TRAINKIT_ASSIGN_OR_RETURN(const Placement placement, resolve_devices(parser, run, machine));
  PredictorOptions options{.devices = placement.devices,
                           .loader = {.batch_size = run.batch_size.value.value_or(32),
                                      .num_workers = resolve_num_workers(run, placement, machine),
                                      .timeout = std::chrono::duration_cast<std::chrono::milliseconds>(run.timeout),
                                      .pin_memory = run.pin_memory}};
  TRAINKIT_ASSIGN_OR_RETURN(options.precision, precision_of(parser, run, placement.device()));
  share_processors(run, placement, machine, cost);
  return options;
}

/// Shows progress on stderr, unless all is done within a few seconds: a line that is redrawn on a terminal, else a line
/// now and then.
std::function<void(int64_t, int64_t)> progress_on_stderr(const std::string& unit) {
  const bool is_terminal = isatty(STDERR_FILENO) == 1;
  const auto interval = is_terminal ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000);
  return [unit, is_terminal, interval, begin = Clock::now(), next = Clock::now() + interval](int64_t done,
                                                                                             int64_t total) mutable {
    const auto now = Clock::now();
    if (now < next && !(is_terminal && done == total)) return;
    next = now + interval;
    const double seconds = std::chrono::duration<double>(now - begin).count();
    const double left = seconds * static_cast<double>(total - done) / static_cast<double>(std::max<int64_t>(done, 1));
    const std::string line =
        fmt::format("{:3}% {}/{} {}, {} left", 100 * done / total, done, total, unit, format_duration(left));
    std::fputs((is_terminal ? "\r" + line + (done == total ? "\r\x1b[K" : "\x1b[K") : line + "\n").c_str(), stderr);
  };
}

/// Runs a command on a run, given the words after its name.
class RunCommandLine {
 public:
  RunCommandLine(App& app, const RunCommand& command) : app_(app), command_(command), parser_(program()) {
    app_.set_defaults(options_);
    add_run_flags(parser_, options_);
    app_.add_flags(parser_);
    if (command_.add_flags) command_.add_flags(parser_);
    for (const std::string& flag : command_.flags) parser_.set_modes(flag, {command_.name});
  }

  /// Returns the request of the flags. For a run it has read config.yaml of `path`, the first word.
  absl::StatusOr<Request> parse(std::vector<std::string> arguments) {
    TRAINKIT_ASSIGN_OR_RETURN(words_, parser_.take_words(arguments));
    if (!words_.empty()) {
      TRAINKIT_RETURN_IF_ERROR(check_config(arguments));
      TRAINKIT_ASSIGN_OR_RETURN(weights_, find_weights(words_.front()));
      arguments.insert(arguments.begin(), {"--config", weights_.run + "/config.yaml"});
    }
    TRAINKIT_ASSIGN_OR_RETURN(const Request request,
                              detail::explain_settings_error(parser_.parse(arguments), app_.info().name));
    if (request == Request::kRun) forget_placement(parser_, options_);
    if (request == Request::kRun) TRAINKIT_RETURN_IF_ERROR(parser_.check_used(mode()));
    return request;
  }

  std::string text(Request request) const { return parser_.text(request); }

  /// Makes the run for the command. Call it after parse().
  absl::StatusOr<TrainedRun> run() {
    use_fast_kernels();
    TRAINKIT_ASSIGN_OR_RETURN(PredictorOptions predictor, predictor_options(parser_, options_, app_.read_cost()));
    return TrainedRun{.parser = parser_,
                      .options = options_,
                      .words = {words_.begin() + 1, words_.end()},
                      .path = words_.front(),
                      .weights = weights_,
                      .predictor = std::move(predictor)};
  }

 private:
  /// Checks that no flag replaces the settings of the run.
  static absl::Status check_config(const std::vector<std::string>& arguments) {
    for (const std::string& flag : arguments) {
      if (flag != "--config" && !flag.starts_with("--config=")) continue;
      return to_status({.exit_code = ExitCode::kUsage,
                        .id = "cli.unsupported",
                        .where = "--config",
                        .problem = "not supported by this command: the settings are those of the run",
                        .hint = "give the settings to change as flags"});
    }
    return absl::OkStatus();
  }

  ProgramMode mode() const {
    ProgramMode mode{{command_.name, modes::kRun}, "in " + app_.info().name + " " + command_.name};
    if (!command_.on_cpu) mode.names.emplace_back(modes::kDevice);
    if (!command_.one_device) mode.names.emplace_back(modes::kRows);
    return mode;
  }

  ProgramInfo program() const {
    const AppInfo info = app_.info();
    ProgramInfo program =
        shared_help({.name = info.name + " " + command_.name,
                     .description = fmt::format(
                         "{}\n\nThe settings are those of the run. A flag of {} that this command uses overrides "
                         "one.",
                         command_.summary, info.name),
                     .examples = command_.examples,
                     .words = command_.words,
                     .help_flags = command_.flags});
    const auto add = [&](std::initializer_list<const char*> flags) {
      program.shared_flags.insert(program.shared_flags.end(), flags.begin(), flags.end());
    };
    program.shared_flags.clear();
    if (!command_.on_cpu) add({"device"});
    if (!command_.one_device) add({"use_multi_gpu", "gpu_ids", "parallel"});
    if (!command_.on_cpu) add({"precision"});
    if (!command_.one_device) add({"num_workers"});
    add({"threads"});
    return program;
  }

  App& app_;
  const RunCommand& command_;
  ConfigParser parser_;
  RunOptions options_;
  std::vector<std::string> words_;
  RunWeights weights_;
};

}  // namespace

absl::StatusOr<std::string> TrainedRun::file(const std::string& name, const std::string& content) const {
  std::string found = weights.run + "/" + name;
  if (Fs::posix().exists(found)) return found;
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "run.file",
                    .where = found,
                    .problem = "this run has not stored " + content,
                    .expected = "a run of this version",
                    .hint = "train again, or resume the run for one more epoch"},
                   absl::StatusCode::kNotFound);
}

absl::Status TrainedRun::check_output(const std::string& path) const {
  // The run's own config.yaml may contain --overwrite.
  if (parser.source("overwrite").starts_with("--") && options.overwrite) return absl::OkStatus();
  std::error_code none;
  const bool exists = std::filesystem::exists(std::filesystem::symlink_status(path, none));
  return exists ? bad_word(path, "file exists already", "", "replace it with --overwrite") : absl::OkStatus();
}

PredictorOptions TrainedRun::options_with_progress(const std::string& unit) const {
  PredictorOptions options = predictor;
  options.on_progress = progress_on_stderr(unit);
  return options;
}

void TrainedRun::announce(const Predictor& used) const {
  const size_t devices = predictor.devices.size();
  const Precision precision = predictor.precision;
  std::fputs(fmt::format("{}; {}{}, {}\n", used.weights().describe(), devices > 1 ? fmt::format("{} x ", devices) : "",
                         used.device().str(), name_of(precision))
                 .c_str(),
             stderr);
}

AppCommand command_on_run(App& app, RunCommand command) {
  return {.name = command.name,
          .summary = command.summary,
          .run = [&app, command](const std::vector<std::string>& words) -> absl::StatusOr<int> {
            RunCommandLine line(app, command);
            TRAINKIT_ASSIGN_OR_RETURN(const Request request, line.parse(words));
            if (request != Request::kRun) {
              print_line(line.text(request));
              return 0;
            }
            TRAINKIT_ASSIGN_OR_RETURN(TrainedRun run, line.run());
            return command.body(run);
          }};
}

absl::Status bad_word(const std::string& word, const std::string& problem, const std::string& expected,
                      const std::string& hint) {
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.word",
                    .field = word,
                    .problem = problem,
                    .expected = expected,
                    .hint = hint});
}

TrainerLine::TrainerLine(App& trainer, ProgramInfo program) : app(trainer), parser(std::move(program)) {
  app.set_defaults(run);
  add_run_flags(parser, run);
  app.add_flags(parser);
}

absl::StatusOr<Request> TrainerLine::parse(const std::vector<std::string>& words) {
  detail::continue_with_own_settings(parser, run);
  TRAINKIT_ASSIGN_OR_RETURN(const Request request,
                            detail::explain_settings_error(parser.parse(words), app.info().name));
  if (request == Request::kVersion || request == Request::kCompletion) return request;
  if (request == Request::kHelp) {
    // Depends neither on a flag nor on the launcher's environment, so that it cannot fail.
    device = resolve_device(parser, run, MachineInfo::here()).value_or(at::kCPU);
  } else {
    TRAINKIT_ASSIGN_OR_RETURN(machine, launched_machine());
    TRAINKIT_ASSIGN_OR_RETURN(device, resolve_device(parser, run, machine));
  }
  parser.set_defaults(app.device_defaults(device.is_cuda()), device.is_cuda() ? "cuda" : "cpu");
  app.set_dependent_defaults(parser);
  return request;
}

absl::Status TrainerLine::check(const ProgramMode& mode) {
  TRAINKIT_RETURN_IF_ERROR(app.resolve_options(parser, run, machine));
  TRAINKIT_RETURN_IF_ERROR(check_run_options(parser, run, machine));
  TRAINKIT_RETURN_IF_ERROR(app.check_options(parser, run));
  return detail::check_flags(mode, parser, run, machine);
}

std::vector<AppCommand> all_commands(App& app) {
  std::vector<AppCommand> commands = app.commands();
  for (auto* make : {plan_command, benchmark_command}) {
    AppCommand command = make(app);
    const bool is_taken =
        std::any_of(commands.begin(), commands.end(), [&](const AppCommand& own) { return own.name == command.name; });
    if (!is_taken) commands.push_back(std::move(command));
  }
  return commands;
}

absl::StatusOr<std::optional<int>> run_command(const std::string& program, const std::vector<AppCommand>& commands,
                                               int argc, const char* const* argv) {
  if (argc < 2 || std::string_view(argv[1]).starts_with('-')) return std::nullopt;
  std::vector<std::string> names;
  for (const AppCommand& command : commands) {
    names.push_back(command.name);
    if (command.name != argv[1]) continue;
    TRAINKIT_ASSIGN_OR_RETURN(const int code, command.run({argv + 2, argv + argc}));
    return code;
  }
  if (std::string_view(argv[1]) == "export") {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "onnx.operator",
                      .problem = program + " cannot be written as ONNX: it has no command export",
                      .hint = "export the weights: trainkit export RUN model.safetensors"});
  }
  const std::string nearest = nearest_name(argv[1], names);
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.positional",
                    .field = escape_text(argv[1]),
                    .problem = "unexpected argument: neither a flag nor a command",
                    .expected = fmt::format("a flag, or {}", fmt::join(names, ", ")),
                    .hint = nearest.empty() ? "see --help" : "did you mean " + nearest + "?"});
}

absl::StatusOr<int> make_demo_data(App& app, const ConfigParser& parser, const RunOptions& run) {
  const std::string& folder = run.make_demo_data;
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored) && !std::filesystem::is_empty(folder, ignored)) {
    return parser.invalid("make_demo_data", "the folder is not empty", "", "name a new folder, or remove this one");
  }
  return app.write_demo_data(folder, run.seed);
}

void complete_commands(const std::vector<AppCommand>& commands, const std::vector<std::string>& words) {
  for (const AppCommand& command : commands) command.run(words).IgnoreError();
}

ProgramInfo shared_help(ProgramInfo program) {
  program.version = library_versions()["trainkit"];
  program.shared_groups = {"Data", "Run", "Optimization", "Devices"};
  program.shared_flags = {"data_dir", "output_dir", "epochs", "batch_size", "lr", "device", "resume", "dry_run"};
  return program;
}

}  // namespace trainkit
