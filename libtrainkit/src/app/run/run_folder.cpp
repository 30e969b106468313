#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "app/program/command_line.h"
#include "app/run/run_files.h"
#include "core/machine/waiting_threads.h"
#include "logging/field_names.h"
#include "logging/run_log.h"
#include "report/run_file.h"
#include "train/run/run_state.h"
#include "trainkit/app/app.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/status.h"
#include "trainkit/io/csv.h"
#include "trainkit/logging/sinks.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/weights.h"

namespace trainkit {
namespace {

namespace fields = detail::fields;

/// Seconds per row of --monitor's table.
constexpr int kTableEvery = 5;

std::chrono::milliseconds milliseconds(Seconds seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(seconds);
}

/// Describes the devices: "ddp over 2 ranks, each on cpu", "dp on cuda:0 (79.1 GiB), cuda:1 (79.1 GiB)", "single on
/// cpu".
std::string describe_devices(const Placement& placement) {
  const std::vector<at::Device>& devices = placement.devices;
  std::string text = name_of(placement.strategy);
  text += placement.group ? fmt::format(" over {} ranks, each on ", placement.batch.replicas) : " on ";
  if (devices.size() > 1 && placement.device().is_cpu()) {
    return text + fmt::format("cpu, {} logical replicas", devices.size());
  }
  if (placement.ranks() > 1 && !placement.device().is_cpu()) {
    return text + fmt::format("a GPU of {}", format_size(total_memory_bytes(placement.device())));
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    text += (i ? ", " : "") + devices[i].str();
    if (!devices[i].is_cpu()) text += fmt::format(" ({})", format_size(total_memory_bytes(devices[i])));
  }
  return text;
}

/// Describes what the ranks divide among them (--shard); empty if nothing.
std::string describe_sharding(Sharding sharding) {
  if (sharding == Sharding::kNone) return "";
  return sharding == Sharding::kOptimizer ? "; they divide the optimizer state"
                                          : "; they divide optimizer state and gradients";
}

/// Describes the parameters, and the memory that weights, gradients, averages and the optimizer's state take on a
/// device.
std::string describe_model(const DeviceReplicator& devices, const Optimizer& optimizer, bool averages) {
  const torch::nn::Module& model = *devices.module();
  int64_t parameters = 0, weight_bytes = 0, trained_bytes = 0, state_bytes = 0;
  for (const auto& [name, tensor] : named_tensors(model)) {
    parameters += tensor.numel();
    weight_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) trained_bytes += static_cast<int64_t>(parameter.nbytes());
  }
  const int64_t ranks = devices.sharding() == Sharding::kNone ? 1 : devices.world_replicas();
  const int64_t gradient_bytes = devices.sharding() == Sharding::kGradients ? trained_bytes / ranks : trained_bytes;
  const StateDict state = optimizer.state_dict();
  for (const auto& [name, value] : state) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor && !name.ends_with(".step")) state_bytes += static_cast<int64_t>(tensor->nbytes());
  }
  return fmt::format("{} parameters; weights {}, gradients {}, {} state {}{}",
                     format_count(static_cast<double>(parameters)), format_size(weight_bytes),
                     format_size(gradient_bytes), std::get<std::string>(state.at("type")), format_size(state_bytes),
                     averages ? ", averages " + format_size(trained_bytes / ranks) : "");
}

/// Returns the values of the last record of `split`, without measured times. Empty if it is of a step before
/// `first_step`.
Metrics last_logged(const std::vector<LogRecord>& records, std::string_view split, int64_t first_step) {
  Metrics values;
  const auto last =
      std::find_if(records.rbegin(), records.rend(), [&](const LogRecord& record) { return record.split == split; });
  if (last == records.rend() || last->step < first_step) return values;
  values.insert(last->values.begin(), last->values.end());
  values.erase(fields::kEvaluationSeconds);
  values.erase(fields::kTime);
  return values;
}

}  // namespace

const char* name_of(Precision precision) {
  return precision == Precision::kBf16 ? "bf16" : precision == Precision::kFp16 ? "fp16" : "fp32";
}

int share_processors(const RunOptions& run, const Placement& placement, const MachineInfo& machine, ReadCost cost) {
  const int ranks = static_cast<int>(std::max<int64_t>(machine.local_ranks, 1));
  const int share = suggest_intra_op_threads(resolve_num_workers(run, placement, machine), cost, ranks);
  const int threads =
      run.threads.is_auto() ? std::min(at::get_num_threads(), share) : static_cast<int>(*run.threads.value);
  at::set_num_threads(threads);
  detail::let_waiting_threads_sleep();
  return threads;
}

void shorten_warmup(const ConfigParser& parser, RunOptions& run, int64_t total_steps) {
  const std::string source = parser.source("warmup_steps");
  const bool is_of_run = !parser.is_given("warmup_steps") && !parser.is_default("warmup_steps");  // that it continues
  if (source.starts_with("default") || source.starts_with("preset") || (is_of_run && run.warmup_steps >= total_steps)) {
    if (run.warmup_steps > total_steps / 10) {
      run.warmup_steps = total_steps / 10;
      parser.add_remark("warmup_steps", "shortened to a tenth of the run");
    }
  }
}

absl::StatusOr<TrainerOptions> trainer_options(const ConfigParser& parser, RunOptions& run, const Placement& placement,
                                               const Prefetcher& loader, double min_lr_factor) {
  TrainerOptions options{.max_epochs = run.epochs,
                         .max_steps = run.max_steps,
                         .max_time = milliseconds(run.max_time),
                         .precision = resolve_precision(run, placement.device()),
                         .grad_accum_steps = placement.batch.grad_accum_steps,
                         .grad_clip = run.grad_clip,
                         .ema_decay = run.ema,
                         .cuda_graph = run.cuda_graph,
                         .on_nonfinite = run.on_nonfinite,
                         .max_nonfinite = run.max_nonfinite,
                         .log_every = run.log_every,
                         .output_dir = run.output_dir,
                         .keep_last = run.keep_last,
                         .keep_every = run.keep_every,
                         .continue_on_save_error = run.on_save_error == OnSaveError::kContinue,
                         .resume = run.resume,
                         .override_lr = parser.is_changed("lr"),
                         .early_stopping = run.early_stopping,
                         .monitoring = {.table_every = run.monitor ? kTableEvery : 0},
                         .profile_step = run.profile,
                         .handle_signals = true};
  const int64_t epoch_steps =
      planned_steps(loader.batches_per_epoch(), {.max_epochs = 1, .grad_accum_steps = options.grad_accum_steps});
  options.eval_every = run.eval_every.value_or(epoch_steps);
  options.save_every = run.save_every.value_or(epoch_steps);
  const int64_t total_steps = planned_steps(loader.batches_per_epoch(), options);
  const bool plateau = run.scheduler == "plateau";
  if (plateau) options.plateau = PlateauOptions{.factor = run.factor, .patience = run.patience};
  shorten_warmup(parser, run, total_steps);
  if (run.warmup_steps > 0 && run.warmup_steps >= total_steps) {
    return parser.invalid("warmup_steps", "leaves no steps for the schedule",
                          "below the " + std::to_string(total_steps) + " steps of the run");
  }
  auto schedule = create_schedule({.name = plateau ? "constant" : run.scheduler,
                                   .total_steps = total_steps,
                                   .warmup_steps = run.warmup_steps,
                                   .min_factor = min_lr_factor});
  if (!schedule.ok()) {
    const auto error = error_of(schedule.status());
    return parser.invalid("scheduler", error ? error->problem : std::string(schedule.status().message()));
  }
  options.schedule = *std::move(schedule);
  return options;
}

std::string describe_time(const TrainerResult& result) {
  return fmt::format("{} steps in {}, data wait {:.1f}%", result.steps_run, format_duration(result.wall_seconds),
                     100 * result.data_wait_fraction);
}

std::string describe_next(const TrainerResult& result, const RunOptions& run, const std::string& program) {
  std::string text;
  if (run.use_tensorboard) {
    const std::string own = run.output_dir + "/tensorboard";
    text += "\ntensorboard --logdir " + (run.tensorboard_dir.empty() ? own : run.tensorboard_dir) +
            "  (loss, scores and throughput together: http://localhost:6006/#custom_scalars)";
  }
  if (result.signal != 0) {
    text += fmt::format("\nstopped by signal {}; resume with: {} --output_dir {} --resume latest", result.signal,
                        program, run.output_dir);
  }
  return text;
}

RunFacts describe_run(const RunOptions& run, Trainer& trainer, const Placement& placement, const Prefetcher& loader) {
  const DeviceReplicator& devices = trainer.devices();
  const Precision precision = trainer.options().precision;
  RunFacts facts;
  const auto add = [&](const char* name, std::string text) { facts.emplace_back(name, std::move(text)); };
  const BatchPlan& batch = placement.batch;
  add("strategy", describe_devices(placement) + describe_sharding(devices.sharding()));
  add("batch",
      fmt::format("{} per device x {} device{} x {} accumulated = {} per step", batch.batch_size, batch.replicas,
                  batch.replicas == 1 ? "" : "s", batch.grad_accum_steps, batch.global_batch_size()));
  if (batch.batch_size != run.batch_size.value) {
    add("", fmt::format("(instead of {} per device, to keep the global batch)", *run.batch_size.value));
  }
  add("precision", name_of(precision));
  add("model", describe_model(devices, trainer.optimizer(), run.ema > 0));
  add("data", fmt::format("{} rows, {} batches per epoch, {} workers, {} LibTorch threads on {} processors",
                          loader.dataset().size(), loader.batches_per_epoch(), loader.options().num_workers,
                          at::get_num_threads(), available_cpus()));
  for (const FieldSpec& field : loader.dataset().fields()) {
    add("", fmt::format("{} ({}{}{}) {}", field.name, batch.batch_size, field.shape.empty() ? "" : ", ",
                        fmt::join(field.shape, ", "), c10::toString(field.dtype)));
  }
  if (devices.device().is_cuda() && precision == Precision::kFp32) {
    add("warning:", "training on a GPU without mixed precision; --mixed_precision is faster and uses less memory");
  }
  if (devices.device().is_cpu() && at::hasCUDA()) {
    add("warning:", "a GPU is available but not used; use --device cuda");
  }
  const int64_t steps = planned_steps(loader.batches_per_epoch(), trainer.options());
  if (run.ema > 0 && steps > 0 && static_cast<double>(steps) * (1 - run.ema) < 3) {
    add("warning:",
        fmt::format("--ema {:g} averages about {:.0f} steps, but the run has {}: the average stays close to "
                    "the initial weights",
                    run.ema, 1 / (1 - run.ema), steps));
  }
  for (const std::string& warning : placement.warnings) add("warning:", warning);
  add("output", run.output_dir);
  return facts;
}

absl::StatusOr<std::string> results_dir(const RunOptions& run) {
  std::string path = run.output_dir + "/results";
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(path).status());
  return path;
}

RunOptions in_own_folder(const RunOptions& run, const std::string& name) {
  RunOptions own = run;
  own.output_dir += "/" + name;
  if (!run.tensorboard_dir.empty()) own.tensorboard_dir += "/" + name;
  if (!run.resume.empty() && !resolve_checkpoint("latest", own.output_dir).ok()) own.resume.clear();
  return own;
}

Metrics mean_and_deviation(const std::vector<Metrics>& runs) {
  Metrics all;
  std::map<std::string, std::vector<double>> values;
  for (const Metrics& run : runs) {
    for (const auto& [name, value] : run) values[name].push_back(value);
  }
  for (const auto& [name, list] : values) {
    const auto count = static_cast<double>(list.size());
    const double mean = std::accumulate(list.begin(), list.end(), 0.0) / count;
    double squares = 0;
    for (const double value : list) squares += (value - mean) * (value - mean);
    all[name] = mean;
    all[name + "_std"] = list.size() > 1 ? std::sqrt(squares / (count - 1)) : 0;
  }
  return all;
}

void log_test(Logger& logger, const TrainerResult& result, const Metrics& scores, const std::string& table) {
  logger.log({.step = result.steps, .epoch = result.epochs, .split = "test", .values = {scores.begin(), scores.end()}});
  logger.log_text({.step = result.steps, .tag = "test", .text = table});
}

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::open(const ConfigParser& parser, const RunOptions& run,
                                                           const Placement& placement, const std::string& program,
                                                           const std::vector<std::string>& files) {
  if (!placement.is_first()) {
    return std::unique_ptr<RunFolder>(new RunFolder("", placement.group, std::make_unique<RunLogger>()));
  }
  int64_t resume_step = -1;
  if (!run.resume.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resumed_checkpoint(run));
    resume_step = checkpoint.step;
  }
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(run.output_dir).status());
  const std::string config = parser.to_yaml(), id = detail::id_of_run(run, resume_step >= 0);
  // First, since run.json proves that the other files are the run's own.
  const detail::SessionStart start{program, config, resume_step, parser.changes(), id, detail::first_files(run, files)};
  TRAINKIT_RETURN_IF_ERROR(detail::begin_session(run.output_dir, start));
  const Settings settings = parser.settings();
  TRAINKIT_ASSIGN_OR_RETURN(auto logger,
                            open_run_log({.output_dir = run.output_dir,
                                          .console = stdout,
                                          .use_tensorboard = run.use_tensorboard,
                                          .tensorboard_dir = run.tensorboard_dir,
                                          .run_id = id,
                                          .settings = {settings.begin(), settings.end()},
                                          .use_wandb = run.use_wandb,
                                          .wandb = {.project = program, .config = {settings.begin(), settings.end()}},
                                          .resume_step = resume_step}));
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), run.output_dir + "/config.yaml", config));
  logger->add(detail::open_session_log(run.output_dir));
  return std::unique_ptr<RunFolder>(new RunFolder(run.output_dir, placement.group, std::move(logger)));
}

void RunFolder::add_bad_line(std::string line) {
  const size_t end_of_row = line.find(',', line.find(',') + 1);  // "train,17"
  if (bad_rows_.insert(line.substr(0, end_of_row)).second) bad_samples_.push_back(std::move(line));
}

void RunFolder::add_bad_samples(const std::string& part, const std::vector<BadSample>& samples) {
  for (const BadSample& sample : samples) {
    add_bad_line(fmt::format("{},{},{},{},{}\n", part, sample.index, sample.epoch, csv_field(sample.name),
                             csv_field(sample.cause)));
  }
}

absl::StatusOr<Metrics> RunFolder::write_bad_samples() {
  const std::string mine(fmt::format("{}", fmt::join(bad_samples_, std::string(1, '\0'))));  // no field contains it
  for (int64_t rank = 1; group_ && rank < group_->world_size(); ++rank) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string theirs, group_->broadcast_text(mine, rank, "gathering bad samples"));
    for (const absl::string_view line : absl::StrSplit(theirs, '\0', absl::SkipEmpty()))
      add_bad_line(std::string(line));
  }
  Metrics counts;
  if (!is_first() || bad_samples_.empty()) return counts;
  std::string text = "part,index,epoch,name,cause\n";
  for (const std::string& line : bad_samples_) {
    text += line;
    ++counts[fmt::format("{}.{}", fields::kBadSamples, line.substr(0, line.find(',')))];
  }
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), path_ + "/bad_samples.csv", text));
  std::string parts;
  for (const auto& [name, count] : counts) {
    parts += fmt::format("{}{} {:.0f}", parts.empty() ? "" : ", ", name.substr(name.find('.') + 1), count);
  }
  logger_->print(fmt::format("rows that could not be read: {}; {}/bad_samples.csv lists them", parts, path_));
  return counts;
}

absl::StatusOr<int> RunFolder::finish(const TrainerResult& result, const Metrics& scores,
                                      const std::vector<std::string>& warnings) {
  if (result.monitor.seconds > 0) logger_->print("monitor: " + describe(result.monitor));
  TRAINKIT_ASSIGN_OR_RETURN(const Metrics bad_samples, write_bad_samples());
  TRAINKIT_RETURN_IF_ERROR(logger_->close());
  const auto named = [](const Metrics& metrics) {
    std::vector<std::pair<std::string, double>> list;
    for (const auto& [name, value] : metrics) list.emplace_back("val_" + name, value);
    return list;
  };
  RunSummary summary{.exit_reason = to_string(result.reason),
                     .exit_code = result.signal == 0 ? 0 : 128 + result.signal,
                     .steps = result.steps,
                     .epochs = result.epochs,
                     .wall_seconds = result.wall_seconds,
                     .effective_fraction = result.effective_fraction,
                     .predicted_memory_bytes = result.predicted_memory_bytes,
                     .real_memory_bytes = result.real_memory_bytes,
                     .predicted_reserved_bytes = result.predicted_reserved_bytes,
                     .real_reserved_bytes = result.real_reserved_bytes,
                     .final_metrics = {},
                     .best_metrics = named(result.best_evaluation),
                     .best_step = result.best_evaluation.empty() ? -1 : result.best_step,
                     .scores = {scores.begin(), scores.end()},
                     .warnings = warnings,
                     .versions = library_versions()};
  summary.scores.insert(summary.scores.end(), bad_samples.begin(), bad_samples.end());
  if (!is_first()) return summary.exit_code;
  // A resumed run that had taken its last step has its final metrics only in its log.
  const bool trained = result.steps_run > 0;
  std::vector<LogRecord> log;
  if (!trained) {
    if (auto records = read_jsonl(path_ + "/metrics.jsonl"); records.ok()) log = *std::move(records);
  }
  summary.final_metrics = named(result.evaluation.empty() ? last_logged(log, "val", 0) : result.evaluation);
  const Metrics training = trained ? Metrics{{fields::kLoss, result.loss}} : last_logged(log, "train", result.steps);
  if (const auto loss = training.find(fields::kLoss); loss != training.end()) {
    summary.final_metrics.emplace_back("train_loss", loss->second);
  }
  TRAINKIT_RETURN_IF_ERROR(write_summary(path_, summary));
  TRAINKIT_RETURN_IF_ERROR(detail::end_session(path_, summary, result.monitor));
  return summary.exit_code;
}

}  // namespace trainkit
