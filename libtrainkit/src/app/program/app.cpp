#include "trainkit/app/app.h"

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/utils.h>

#include <filesystem>

#include "app/program/adjustments.h"
#include "app/program/command_line.h"
#include "app/program/repeats.h"
#include "app/program/run_checks.h"
#include "app/program/trainer_mark.h"
#include "app/run/describe_run.h"
#include "app/run/resume.h"
#include "app/run/run_files.h"
#include "app/run/trainer_options.h"
#include "io/weights/model_weights.h"
#include "report/report.h"
#include "report/run_file.h"
#include "tasks/format_scores.h"
#include "train/run/training_source.h"
#include "trainkit/app/initial_weights.h"
#include "trainkit/app/placement.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/data/sampler.h"
#include "trainkit/nn/functional.h"
#include "trainkit/report/summary.h"

namespace trainkit {
namespace {

__attribute__((used, retain)) const std::string_view kMark = detail::kTrainerMark;

constexpr char kDeviceRemark[] =
    "Defaults marked (cuda) or (cpu) depend on the device: these are of this machine's. --print_config shows the "
    "values "
    "of a run.";

std::vector<std::string> warnings_of(const RunFacts& facts) {
  std::vector<std::string> warnings;
  for (const auto& [name, text] : facts) {
    if (name == "warning:") warnings.push_back(text);
  }
  return warnings;
}

/// A run without a report is a finished run.
void print_report_error(const absl::Status& written) {
  if (!written.ok()) print_line("warning: no report.html: " + error_line(written));
}

/// The parts of one run that belong together, made in order.
class AppRun {
 public:
  /// `all` has the common settings of several runs.
  AppRun(App& app, RunContext& context, const RunOptions& all, ProgramState& program)
      : app_(app), context_(context), run_(context.run), all_(all), program_(program) {}

  /// Runs one training, or sets `was_finished` for a resumed run that has ended. `memory` is planned by the first of
  /// several repeats; `test` is set to that of the run.
  absl::StatusOr<int> train(std::optional<MemoryPlan>& memory, bool& was_finished, std::shared_ptr<ModelTest>& test) {
    TRAINKIT_ASSIGN_OR_RETURN(task_, detail::open_task(app_, context_));
    test = model_test();
    if (!memory) {
      TRAINKIT_ASSIGN_OR_RETURN(memory,
                                plan_memory(context_.parser, run_, context_.machine, task_.recipe, context_.placement));
      app_.apply_plan(*memory);
    }
    run_.batch_size.value = run_.batch_size.value.value_or(context_.placement.batch.batch_size);
    if (!run_.dry_run) {
      TRAINKIT_ASSIGN_OR_RETURN(const int interrupted, app_.prepare(context_, task_));
      if (interrupted != 0) return interrupted;
    }
    TRAINKIT_RETURN_IF_ERROR(make_loaders());
    TRAINKIT_RETURN_IF_ERROR(make_replicas());
    TRAINKIT_ASSIGN_OR_RETURN(Trainer trainer, make_trainer(*memory));
    if (run_.dry_run) return 0;
    TRAINKIT_ASSIGN_OR_RETURN(was_finished, is_finished());
    return was_finished ? 0 : fit_and_test(trainer);
  }

 private:
  void add_facts(const RunFacts& facts) {
    task_.description.insert(task_.description.end(), facts.begin(), facts.end());
  }

  absl::Status make_loaders() {
    const Placement& placement = context_.placement;
    if (!task_.order) {
      task_.order =
          std::make_shared<RandomSampler>(task_.training_set->size(), RandomSamplerOptions{.seed = run_.seed});
    }
    TRAINKIT_ASSIGN_OR_RETURN(loader_,
                              training_loader(task_.training_set, task_.order, run_, context_.machine, placement));
    TRAINKIT_RETURN_IF_ERROR(check_has_batch(*loader_));
    TRAINKIT_RETURN_IF_ERROR(detail::check_last_batch(*loader_, context_.placement, run_, task_.recipe));
    if (!task_.validation_set) return compare_data(placement, {{"training", task_.training_set.get()}});
    TRAINKIT_ASSIGN_OR_RETURN(validation_, evaluation_loader(task_.validation_set, run_, context_.machine, placement));
    return compare_data(placement,
                        {{"training", task_.training_set.get()}, {"validation", task_.validation_set.get()}});
  }

  absl::Status make_replicas() {
    TRAINKIT_ASSIGN_OR_RETURN(
        devices_,
        DeviceReplicator::create(task_.recipe.make_model, replicator_options(run_, context_.placement, task_.recipe)));
    if (run_.init_from.empty() || !run_.resume.empty()) return absl::OkStatus();
    TRAINKIT_ASSIGN_OR_RETURN(const RunWeights from, find_initial_weights(run_.init_from));
    LoadWeightsOptions options;
    TRAINKIT_RETURN_IF_ERROR(app_.adapt_weights(context_, from, options, task_.description));
    TRAINKIT_ASSIGN_OR_RETURN(const LoadedWeights loaded, load_weights(*devices_->module(), from.file, options));
    if (!loaded.left_out.empty()) add_facts({{"note", detail::describe_left_out(from.file, loaded.left_out)}});
    devices_->synchronize();
    return absl::OkStatus();
  }

  absl::StatusOr<Trainer> make_trainer(const MemoryPlan& memory) {
    TRAINKIT_ASSIGN_OR_RETURN(
        settings_, detail::trainer_options(context_.parser, run_, context_.placement, *loader_, task_.final_lr_share));
    settings_.predicted_memory = memory.predicted();
    settings_.predicted_device_memory = memory.predicted_on_device();
    settings_.explain_out_of_memory = memory.ladder;
    if (const auto test = model_test()) {
      settings_.monitor = test->monitor();
      settings_.monitor_higher_is_better = settings_.monitor != "loss";
    }
    app_.configure(context_, settings_, *devices_);
    add_facts(detail::drop_unused_evaluation(context_.parser, validation_ != nullptr, settings_));
    if (!task_.data_digest.empty()) settings_.config["data"] = task_.data_digest;
    TRAINKIT_ASSIGN_OR_RETURN(Trainer trainer,
                              Trainer::create(*devices_, task_.make_optimizer(*devices_->module()), settings_));
    RunFacts facts = task_.description;
    for (const RunFacts& more : {memory.describe(), detail::describe_run(run_, trainer, context_.placement, *loader_),
                                 detail::describe_resume(context_.parser, run_)}) {
      facts.insert(facts.end(), more.begin(), more.end());
    }
    context_.print(run_.json ? plan_to_json(facts, memory) : to_text(facts));
    facts_ = std::move(facts);
    return trainer;
  }

  /// Whether nothing is left to do, on all ranks, and says so.
  absl::StatusOr<bool> is_finished() {
    const std::string end = detail::describe_end(run_, settings_, loader_->batches_per_epoch());
    bool finished = !end.empty();
    ProcessGroup* group = context_.placement.group.get();
    if (group && !run_.resume.empty()) {
      const at::Tensor unfinished = at::full({1}, finished ? 0.0 : 1.0, at::kDouble);
      TRAINKIT_RETURN_IF_ERROR(group->all_reduce_max(unfinished, "whether the run is finished"));
      finished = unfinished.item<double>() == 0;
    }
    if (finished) context_.print("\n" + end);
    return finished;
  }

  std::shared_ptr<ModelTest> model_test() const { return task_.test ? task_.test : task_.task; }

  bool has_test() const { return task_.test || task_.test_set; }

  /// Tests the model on all ranks.
  absl::Status test_weights(const ModelTest& test) {
    std::unique_ptr<Prefetcher> loader;
    if (task_.test_set) {
      TRAINKIT_ASSIGN_OR_RETURN(loader, evaluation_loader(task_.test_set, run_, context_.machine, context_.placement));
    }
    TRAINKIT_ASSIGN_OR_RETURN(tested_, test.test(*devices_, loader.get(), task_.test_set ? task_.test_set->size() : 0,
                                                 settings_.precision, context_.placement.group.get()));
    folder_->add_bad_samples("test", tested_.bad_samples);
    return absl::OkStatus();
  }

  /// Tests the model on all ranks, writes its results on rank 0, and returns its scores.
  absl::StatusOr<Metrics> test(const TrainerResult& result) {
    const auto test = model_test();
    for (const auto& [part, samples] : task_.bad_samples) folder_->add_bad_samples(part, samples);
    if (task_.on_trained && context_.placement.is_first()) {
      TRAINKIT_RETURN_IF_ERROR(task_.on_trained(*devices_->module()));
    }
    const bool has_results = has_test() || (task_.task && task_.task->shows_weights(/*at_end=*/true));
    if (result.signal != 0 || !has_results) return Metrics{};
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t step, load_best());
    if (has_test()) TRAINKIT_RETURN_IF_ERROR(test_weights(*test));
    tested_.step = step;
    tested_.epochs = result.epochs;
    if (best_) tested_.best = best_->value();
    if (!context_.placement.is_first()) return tested_.scores;
    TRAINKIT_ASSIGN_OR_RETURN(const std::string folder, results_dir(run_));
    ResultPage page;
    TRAINKIT_RETURN_IF_ERROR(app_.on_results(context_, folder, tested_, page));
    show({.model = *devices_->module(),
          .step = step >= 0 ? step : result.steps,
          .metrics = result.best_evaluation,
          .at_end = true,
          .is_best = step >= 0},
         page);
    if (!has_test()) return tested_.scores;
    TRAINKIT_RETURN_IF_ERROR(test->write(folder, tested_, page));
    TRAINKIT_RETURN_IF_ERROR(page.write(folder));
    // They come after the run's last checkpoint, so a run resumed from it logs them again (Logger::rewind).
    Logger& logger = folder_->logger();
    logger.log({.step = result.steps,
                .epoch = result.epochs,
                .split = "test",
                .values = {tested_.scores.begin(), tested_.scores.end()}});
    logger.log_text({.step = result.steps, .tag = "test", .text = test->table(tested_)});
    return tested_.scores;
  }

  /// Loads the best weights into every replica, on all ranks. Returns their step; -1 if there are none, and the last
  /// weights stay.
  absl::StatusOr<int64_t> load_best() {
    if (!best_) return -1;
    TRAINKIT_RETURN_IF_ERROR(best_->restore(*devices_->module()).status());
    devices_->synchronize();
    return best_->step();
  }

  /// Lets the task show weights on a page, on rank 0. What cannot be written (a full disk) is a warning: the run does
  /// not need it.
  void show(const ShownWeights& weights, ResultPage& page) {
    if (!task_.task || !task_.task->shows_weights(weights.at_end)) return;
    const absl::Status shown = [&]() -> absl::Status {
      TRAINKIT_ASSIGN_OR_RETURN(const std::string folder, results_dir(run_));
      TRAINKIT_ASSIGN_OR_RETURN(last_lines_, task_.task->show(weights, folder, page));
      return page.write(folder);
    }();
    if (!shown.ok()) context_.print("warning: a sample is missing in the report: " + error_line(shown));
  }

  std::string describe_scores(const TrainerResult& result, const Metrics& scores) const {
    const auto test = model_test();
    if (!test) return detail::describe_evaluation(result);
    return detail::describe_task_scores(*test, result, has_test() ? scores : Metrics{}, tested_.step, run_.output_dir);
  }

  absl::StatusOr<int> fit_and_test(Trainer& trainer) {
    absl::Status evaluated;
    const auto on_evaluation = [&](int64_t step, Metrics& metrics) { evaluated.Update(evaluate(step, metrics)); };
    TRAINKIT_ASSIGN_OR_RETURN(const TrainerResult result,
                              trainer.fit(*loader_, task_.loss,
                                          {.validation = run_.eval_every == 0 ? nullptr : validation_.get(),
                                           .validation_loss = task_.validation_loss,
                                           .on_evaluation = on_evaluation,
                                           .open_logger = [this] { return open_folder(); }}));
    TRAINKIT_RETURN_IF_ERROR(evaluated);
    folder_->add_bad_samples("train", loader_->bad_samples());
    if (validation_) folder_->add_bad_samples("validation", validation_->bad_samples());
    TRAINKIT_ASSIGN_OR_RETURN(const Metrics scores, test(result));
    TRAINKIT_ASSIGN_OR_RETURN(const int code, folder_->finish(result, scores, warnings_of(task_.description)));
    context_.print(detail::describe_time(result) + "\n" + describe_scores(result, scores) + "report     " +
                   run_.output_dir + "/report.html" + detail::describe_next(result, run_, app_.info().name));
    if (!context_.placement.is_first()) return code;
    if (code == 0) TRAINKIT_RETURN_IF_ERROR(app_.finish(context_, result));
    if (code == 0 && !last_lines_.empty()) context_.print("\n" + last_lines_);
    print_report_error(detail::write_report(run_.output_dir));
    return code;
  }

  /// Writes the first files of the run. A resumed run has read its checkpoint before.
  absl::StatusOr<Logger*> open_folder() {
    program_.output_dir = run_.output_dir;
    const bool is_first = context_.placement.is_first();
    const AppInfo info = app_.info();
    detail::EarlierRun earlier, earlier_repeat;  // put back if the folder cannot be opened
    if (is_first && context_.repeat == 0) {
      TRAINKIT_ASSIGN_OR_RETURN(earlier, detail::EarlierRun::make_room(all_, info.files));
    }
    if (app_.repeats().count > 1 && is_first) {
      TRAINKIT_RETURN_IF_ERROR(prepare_output_dir(context_.parser, run_, info.files));
      TRAINKIT_ASSIGN_OR_RETURN(earlier_repeat, detail::EarlierRun::make_room(run_, info.files));
      TRAINKIT_RETURN_IF_ERROR(detail::save_common_settings(context_.parser, info.name, all_.output_dir));
    }
    TRAINKIT_ASSIGN_OR_RETURN(folder_,
                              RunFolder::open(context_.parser, run_, context_.placement, info.name, info.files));
    if (is_first) {
      TRAINKIT_RETURN_IF_ERROR(app_.save(run_));
      TRAINKIT_RETURN_IF_ERROR(
          detail::describe_session(run_.output_dir, facts_, settings_.monitor, settings_.monitor_higher_is_better));
    }
    if (task_.keep_best) {
      TRAINKIT_ASSIGN_OR_RETURN(best_, BestModel::open(run_.output_dir, run_.resume,
                                                       {.metric = settings_.monitor,
                                                        .higher_is_better = settings_.monitor_higher_is_better,
                                                        .writes = is_first}));
      if (best_->lost()) {
        folder_->logger().print(
            fmt::format("warning: the weights of the best {} so far, {:g}, are no longer in the run folder; the next "
                        "better ones are kept",
                        settings_.monitor, best_->value()));
      }
    }
    TRAINKIT_RETURN_IF_ERROR(earlier.remove());
    TRAINKIT_RETURN_IF_ERROR(earlier_repeat.remove());
    if (is_first) context_.logger = &folder_->logger();
    return &folder_->logger();
  }

  absl::Status evaluate(int64_t step, Metrics& metrics) {
    if (task_.task) {
      TRAINKIT_RETURN_IF_ERROR(task_.task->add_scores(context_.placement.group.get(), metrics));
    }
    TRAINKIT_RETURN_IF_ERROR(app_.on_evaluation(context_, step, metrics, *devices_));
    if (task_.task && context_.placement.is_first()) {
      ResultPage page;
      show({.model = *devices_->module(), .step = step, .metrics = metrics}, page);
    }
    if (!best_) return absl::OkStatus();
    absl::Status kept = best_->offer(step, metrics.at(settings_.monitor), *devices_->module());
    if (!kept.ok() && run_.on_save_error == OnSaveError::kFail) return kept;
    if (!kept.ok())
      folder_->logger().print("warning: " + error_line(kept) + "; continuing with the earlier best weights");
    const bool is_best = best_->writes() && best_->step() == step;
    return is_best ? app_.on_best(context_, *devices_->module()) : absl::OkStatus();
  }

  App& app_;
  RunContext& context_;
  RunOptions& run_;
  const RunOptions& all_;
  ProgramState& program_;
  TrainingTask task_;
  std::unique_ptr<Prefetcher> loader_, validation_;
  std::unique_ptr<DeviceReplicator> devices_;
  TrainerOptions settings_;
  std::unique_ptr<RunFolder> folder_;
  std::optional<BestModel> best_;
  TestedRows tested_;
  std::string last_lines_;  // of the task
  RunFacts facts_;
};

/// Writes the summary and the report of several runs, on rank 0, unless all had ended before.
absl::Status finish_repeats(const Repeats& repeats, const RunOptions& run, const ModelTest* test, bool were_finished) {
  if (were_finished && std::filesystem::exists(run.output_dir + "/summary.json")) {
    print_line(fmt::format("\nall {} runs in {} are finished", repeats.count, run.output_dir));
    return absl::OkStatus();
  }
  std::vector<std::pair<std::string, uint64_t>> runs;
  for (int64_t i = 0; i < repeats.count; ++i) {
    const RunOptions repeat = detail::repeat_of(run, repeats, i);
    runs.emplace_back(repeat.output_dir, repeat.seed);
  }
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<Metrics> scores, detail::summarize_repeats(run.output_dir, runs));
  if (test) {
    print_line(fmt::format("\n{:<10} {}  (mean and standard deviation)",
                           fmt::format("{} {}s", runs.size(), repeats.word),
                           detail::format_scores(test->score_names(), detail::mean_and_deviation(scores))));
  }
  print_report_error(detail::write_report(run.output_dir));
  return absl::OkStatus();
}

absl::StatusOr<int> train_all(App& app, const ConfigParser& parser, RunOptions& run, const MachineInfo& machine,
                              ProgramState& program) {
  const Repeats repeats = app.repeats();
  RunOptions first = detail::repeat_of(run, repeats, 0);
  TRAINKIT_ASSIGN_OR_RETURN(Placement placement, place_run(parser, first, machine, program));
  if (placement.is_first()) TRAINKIT_RETURN_IF_ERROR(detail::prepare_folders(app, parser, run));
  at::globalContext().setBenchmarkCuDNN(run.cudnn_benchmark);
  at::globalContext().setFloat32MatmulPrecision(run.float32_matmul_precision);
  share_processors(run, placement, machine, app.read_cost());
  std::optional<MemoryPlan> memory;
  std::shared_ptr<ModelTest> test;
  bool were_finished = true;
  for (int64_t i = 0; i < repeats.count; ++i) {
    // A run that cannot start leaves the folder of an earlier one as it is.
    const bool is_new = run.resume.empty() && !std::filesystem::exists(run.output_dir + "/checkpoints") &&
                        !detail::RunFiles(run.output_dir, {}).is_finished();
    const bool reports_errors = placement.is_first() && !run.dry_run && is_new;
    program.output_dir = reports_errors ? run.output_dir : "";
    RunOptions repeat = detail::repeat_of(run, repeats, i);
    // The options of a single run are the parser's, so that config.yaml gets the values that the run chooses.
    RunContext context{parser, repeats.count > 1 ? repeat : run, machine, placement, i};
    bool was_finished = false;
    TRAINKIT_ASSIGN_OR_RETURN(const int code, AppRun(app, context, run, program).train(memory, was_finished, test));
    if (code != 0 || run.dry_run) return code;
    were_finished &= was_finished;
  }
  if (repeats.count > 1 && placement.is_first())
    TRAINKIT_RETURN_IF_ERROR(finish_repeats(repeats, run, test.get(), were_finished));
  return 0;
}

absl::StatusOr<int> run(int argc, const char* const* argv, App& app, ProgramState& program) {
  const AppInfo info = app.info();
  const std::vector<AppCommand> commands = all_commands(app);
  TRAINKIT_ASSIGN_OR_RETURN(const std::optional<int> command, run_command(info.name, commands, argc, argv));
  if (command) return *command;
  ProgramInfo program_info = shared_help(
      {.name = info.name, .description = info.description, .examples = info.examples, .help_flags = info.help_flags});
  for (const AppCommand& each : commands) program_info.commands.emplace_back(each.name, each.summary);
  program_info.remark = kDeviceRemark;
  TrainerLine line(app, std::move(program_info));
  TRAINKIT_ASSIGN_OR_RETURN(const Request request, line.parse({argv + 1, argv + argc}));
  ConfigParser& parser = line.parser;
  RunOptions& run = line.run;
  const MachineInfo& machine = line.machine;
  if (request == Request::kPrintConfig) {
    // The values that a run uses, as far as they do not depend on its data.
    app.resolve_options(parser, run, machine).IgnoreError();
    if (run.max_steps > 0) detail::shorten_warmup(parser, run, run.max_steps);
  }
  if (request != Request::kRun) {
    print_line(parser.text(request));
    if (request == Request::kCompletion) complete_commands(commands, {argv + 1, argv + argc});
    return 0;
  }
  if (!run.make_demo_data.empty()) {
    TRAINKIT_RETURN_IF_ERROR(parser.check_used({{modes::kDemoData}, "with --make_demo_data"}));
    return make_demo_data(app, parser, run);
  }
  const std::optional<OtherWork> other = app.other_work();
  TRAINKIT_RETURN_IF_ERROR(line.check(other ? other->mode : ProgramMode{{modes::kTrain}, "in training"}));
  use_fast_kernels();
  if (other) return other->work(run, line.device);
  return train_all(app, parser, run, machine, program);
}

}  // namespace

void RunContext::print(const std::string& line) const {
  if (placement.is_first()) print_line(line);
}

std::vector<AppCommand> App::commands() { return {}; }
void App::set_defaults(RunOptions&) const {}
void App::add_flags(ConfigParser&) {}
Settings App::device_defaults(bool cuda) const { return {{"mixed_precision", cuda ? "true" : "false"}}; }
void App::set_dependent_defaults(ConfigParser&) const {}
absl::StatusOr<int> App::write_demo_data(const std::string&, uint64_t) {
  return absl::UnimplementedError(info().name + " has no demonstration data");
}
absl::Status App::resolve_options(const ConfigParser&, RunOptions&, const MachineInfo&) { return absl::OkStatus(); }
absl::Status App::check_options(const ConfigParser&, const RunOptions&) const { return absl::OkStatus(); }
std::optional<OtherWork> App::other_work() const { return std::nullopt; }
void App::apply_plan(const MemoryPlan&) {}
absl::StatusOr<int> App::prepare(RunContext&, TrainingTask&) { return 0; }
void App::configure(RunContext&, TrainerOptions&, DeviceReplicator&) {}
absl::Status App::save(const RunOptions&) const { return absl::OkStatus(); }
absl::Status App::on_evaluation(RunContext&, int64_t, Metrics&, DeviceReplicator&) { return absl::OkStatus(); }
absl::Status App::on_best(RunContext&, const torch::nn::Module&) { return absl::OkStatus(); }
absl::Status App::on_results(RunContext&, const std::string&, TestedRows&, ResultPage&) { return absl::OkStatus(); }
absl::Status App::finish(RunContext&, const TrainerResult&) { return absl::OkStatus(); }

int run_app(int argc, const char* const* argv, App& app) {
  return run_program([&](ProgramState& program) { return run(argc, argv, app, program); });
}

}  // namespace trainkit
