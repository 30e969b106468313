#pragma once
/// The skeleton of a trainer program. An App defines what is trained; run_app() does everything that trainers share:
/// flags, --help, devices and ranks, memory plan, data loaders, replicas, training, resume, evaluation and results.
/// docs/own-trainer.md builds one step by step.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/app/memory_plan.h"
#include "trainkit/app/placement.h"
#include "trainkit/app/plan.h"
#include "trainkit/app/predictor.h"
#include "trainkit/app/run_folder.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/core/processors.h"
#include "trainkit/data/dataset.h"
#include "trainkit/data/sampler.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/logging/logger.h"
#include "trainkit/tasks/task.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/step_memory.h"
#include "trainkit/train/trainer.h"
#include "trainkit/train/weights.h"

namespace trainkit {

struct OnnxModel;
struct TrainedModel;  // of functions that are gone

/// Name, description and examples of --help.
struct AppInfo {
  /// Also the name of the W&B project.
  std::string name;
  std::string description;
  std::vector<std::string> examples = {};
  /// Own flags that --help lists, in this order, before the most used shared ones; --help all lists every flag. Empty:
  /// all own flags.
  std::vector<std::string> help_flags = {};
  /// Files that App::save writes, relative to the run's folder ("tokenizer.json"). A new run does not start if one
  /// exists that no earlier run is known to have written.
  std::vector<std::string> files = {};
  /// Returns what `PROGRAM plan` assumes where no flag says it: the sizes of an example, so that it needs no data.
  /// `parser` has the flags, `device_bytes` is the memory that they give a device, or 0. Null: nothing is assumed.
  std::function<PlanExample(const ConfigParser& parser, int64_t device_bytes)> plan_example = nullptr;
};

/// The settings of one run. References stay valid until run_app() returns.
struct RunContext {
  const ConfigParser& parser;
  RunOptions& run;
  const MachineInfo& machine;
  Placement& placement;
  /// Number of this run among those of App::repeats(), from 0.
  int64_t repeat = 0;
  /// The log of the run, on rank 0 from the first step on; else nullptr. on_evaluation() and other hooks log their
  /// own texts, pictures and histograms with it.
  Logger* logger = nullptr;

  /// Prints a line on stdout, on rank 0 alone.
  void print(const std::string& line) const;
};

/// Several runs in a row: with other seeds, or the folds of a cross-validation.
struct Repeats {
  /// 1: a single run, in --output_dir itself.
  int64_t count = 1;
  /// Each run writes to `<output_dir>/<folder>-<number>`, the numbers from 1.
  std::string folder = "repeat";
  /// Singular of what lines call a run: "5 folds".
  std::string word = "run";
  /// The first run has --seed, each further one the next number.
  bool own_seeds = true;
};

/// What flags ask for instead of training: `--sample TEXT` continues a text.
struct OtherWork {
  /// For ConfigParser::check_used: {{"sample"}, "with --sample"}.
  ProgramMode mode;
  /// Does it, on one device, and returns the exit code.
  std::function<absl::StatusOr<int>(const RunOptions& run, at::Device device)> work;
};

/// A model, its data and its loss.
struct TrainingTask {
  /// Needs make_model, and loss unless `task` is given. Defaults: AdamW with --lr and --weight_decay, and
  /// `training_set` for the memory plan.
  StepRecipe recipe;
  std::shared_ptr<const Dataset> training_set;
  /// Order of the training rows. nullptr: a RandomSampler with --seed.
  std::shared_ptr<const Sampler> order = nullptr;
  /// nullptr: no evaluation.
  std::shared_ptr<const Dataset> validation_set = nullptr;
  /// The kind of task: classification(), regression(), language(), or your own. It gives the losses below and the
  /// scores of evaluations, and run_app() tests the model on `test_set` and writes and shows the results. nullptr: the
  /// losses below, and no test but `test`.
  std::shared_ptr<Task> task = nullptr;
  /// Rows of the test; nullptr: no test.
  std::shared_ptr<const Dataset> test_set = nullptr;
  /// Instead of the test by `task`: one that is not row by row. `test_set` may be nullptr then.
  std::shared_ptr<ModelTest> test = nullptr;
  /// With one of these: called on rank 0 with the last weights, before the best ones are loaded and tested, also after
  /// a signal.
  std::function<absl::Status(const torch::nn::Module& model)> on_trained = nullptr;
  /// Rows known to be unreadable, by part ("train", "validation", "test"), for bad_samples.csv.
  std::vector<std::pair<std::string, std::vector<BadSample>>> bad_samples = {};
  /// The loss of training and of evaluation. Null: the task's, or recipe.loss.
  LossFunction loss = nullptr;
  LossFunction validation_loss = nullptr;
  /// The optimizer of a given model, for parameter groups with settings of their own. Null: recipe.make_optimizer.
  std::function<std::unique_ptr<Optimizer>(const torch::nn::Module& model)> make_optimizer = nullptr;
  /// Learning rate at the end of the schedule, as a share of --lr.
  double final_lr_share = 0;
  /// Keep the weights of the best evaluation in `best.safetensors`.
  bool keep_best = false;
  /// Identifies the contents of the data, for example Digest::of(text). Saved in checkpoints. A run resumed on other
  /// data fails before it writes a file. Empty: not checked.
  std::string data_digest = {};
  /// Facts about the data for the first lines of the run: {{"data", "150 rows of 4 features"}}. Those named "warning:"
  /// are also listed in summary.json.
  RunFacts description = {};
};

/// A subcommand of a trainer: `trainkit-hsi benchmark --gpus 4`. App::commands lists them.
struct AppCommand {
  std::string name;
  /// One line for --help of the program.
  std::string summary;
  /// Runs the command with the words after its name, and returns the exit code. It answers --help, --version and
  /// --completion as ConfigParser does.
  std::function<absl::StatusOr<int>(const std::vector<std::string>& words)> run;
};

namespace detail {

/// Functions of App that are gone: overriding one is an error of the compiler, whose note shows the successor. Until
/// the next minor version.
class RemovedFunctions {
 protected:
  virtual ~RemovedFunctions() = default;

 private:
  // TrainingTask::task shows the mean of several repeats, and Repeats::word names them.
  virtual absl::Status finish_repeats(const RunOptions&, const std::vector<Metrics>&) final { return {}; }
  // App::repeats returns a Repeats, which says how the settings of several runs differ.
  virtual RunOptions repeat_of(const RunOptions&, int64_t) final { return {}; }
  // TrainingTask::task or TrainingTask::test tests the model; App::on_results writes more.
  virtual absl::StatusOr<Metrics> test(RunContext&, const TrainedModel&) final { return Metrics{}; }
  // ModelTest::score_names names the scores in the last lines.
  virtual std::string describe_scores(const RunContext&, const TrainerResult&, const Metrics&) final { return {}; }
  // App::other_work returns the mode and what is done in it.
  virtual absl::StatusOr<std::optional<int>> run_instead(const RunOptions&, at::Device) final { return std::nullopt; }
  virtual std::optional<ProgramMode> mode_instead() const final { return std::nullopt; }
};

}  // namespace detail

/// A trainer. run_app() calls the functions in the order of this class, all on the calling thread. Only info() and
/// open() must be overridden.
///
///   class Classifier final : public trainkit::App {
///     AppInfo info() const override { return {.name = "classifier", .description = "Classifies .npy rows."}; }
///     absl::StatusOr<TrainingTask> open(RunContext& context) override { ... }
///   };
///   int main(int argc, char** argv) { Classifier app; return trainkit::run_app(argc, argv, app); }
class App : private detail::RemovedFunctions {
 public:
  ~App() override = default;

  // ---- Flags

  /// Returns the subcommands of the program, for example command_on_run(*this, ...) for `trainkit-hsi predict`. A
  /// command line without one trains. Every program also has `plan` and `benchmark`, unless one of that name is here.
  virtual std::vector<AppCommand> commands();
  virtual AppInfo info() const = 0;
  /// Changes defaults of the shared flags.
  virtual void set_defaults(RunOptions& run) const;
  virtual void add_flags(ConfigParser& parser);
  /// Defaults that depend on the device. --help shows those of this machine's device. By default mixed precision is on
  /// with CUDA.
  virtual Settings device_defaults(bool cuda) const;
  /// Sets defaults that follow from other flags (ConfigParser::set_defaults).
  virtual void set_dependent_defaults(ConfigParser& parser) const;
  /// Writes a small data set to `folder` for --make_demo_data and returns the exit code.
  virtual absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed);
  /// Sets options that follow from other options, before any check.
  virtual absl::Status resolve_options(const ConfigParser& parser, RunOptions& run, const MachineInfo& machine);
  /// Checks rules between flags.
  virtual absl::Status check_options(const ConfigParser& parser, const RunOptions& run) const;
  /// What the flags ask for instead of training; nullopt: they train.
  virtual std::optional<OtherWork> other_work() const;
  virtual Repeats repeats() const { return {}; }

  // ---- Before training

  /// Cost of reading a row, which divides the processors between loader workers and LibTorch.
  virtual ReadCost read_cost() const { return ReadCost::kCopy; }
  /// Opens the data. Called for each repeat on every rank; the default generators are seeded with --seed.
  virtual absl::StatusOr<TrainingTask> open(RunContext& context) = 0;
  /// Applies the memory plan's choices (MemoryPlan::checkpoint_segments).
  virtual void apply_plan(const MemoryPlan& plan);
  /// Prepares the data on every rank (fills a cache); may replace the task's data sets. Not called in a dry run.
  /// Returns 128 + the number of a signal that interrupted it, else 0.
  virtual absl::StatusOr<int> prepare(RunContext& context, TrainingTask& task);
  /// Prepares the weights of --init_from, on every rank. Names and shapes do not say what the rows of a tensor mean:
  /// users, characters, classes. A trainer that stores their names next to its weights (save()) compares those of
  /// `from` with its own here: it sets options.adapt, which puts the rows into order, or returns an error. `facts` are
  /// lines for the user; those named "warning:" are also listed in summary.json. Default: rows are taken as they are.
  virtual absl::Status adapt_weights(RunContext& context, const RunWeights& from, LoadWeightsOptions& options,
                                     RunFacts& facts);
  /// Changes the trainer's options: the metric to monitor, what checkpoints keep.
  virtual void configure(RunContext& context, TrainerOptions& options, DeviceReplicator& devices);
  /// Writes files next to the checkpoints before training starts (a tokenizer), with write_file_atomically(). AppInfo
  /// lists them. Rank 0 alone.
  virtual absl::Status save(const RunOptions& run) const;

  // ---- During training

  /// Adds metrics to an evaluation, on every rank. Must not draw from the default random generators.
  virtual absl::Status on_evaluation(RunContext& context, int64_t step, Metrics& metrics, DeviceReplicator& devices);
  /// Called on rank 0 after an evaluation whose weights were kept as the best.
  virtual absl::Status on_best(RunContext& context, const torch::nn::Module& model);

  // ---- After training

  /// Called on rank 0 after the test of TrainingTask::task or test, before its results are written to `folder`
  /// (results_dir()); without rows where only weights are shown (Task::shows_weights). May write further files, and add
  /// scores and sections, which come before those of the task.
  virtual absl::Status on_results(RunContext& context, const std::string& folder, TestedRows& tested, ResultPage& page);
  /// Prints more after the last lines, on rank 0, after a run that no signal stopped.
  virtual absl::Status finish(RunContext& context, const TrainerResult& result);
};

/// Runs a trainer from its command line and returns the exit code of the process (ExitCode of trainkit/core/error.h).
/// Errors go to stderr as one line, see run_program(). Blocks until the run ends.
int run_app(int argc, const char* const* argv, App& app);

// ---- Commands that use a trained run

/// A trained run that a command uses.
struct TrainedRun {
  /// Settings of the run, and flags given now.
  const ConfigParser& parser;
  const RunOptions& options;
  /// Words after RUN and before the first flag.
  std::vector<std::string> words;
  /// RUN as the user gave it, and its weights.
  std::string path;
  RunWeights weights;
  /// Devices and loader of the command, from the flags; see load().
  PredictorOptions predictor;

  /// Returns the path of a file that the trainer has stored in the run's folder. run.file (exit code 5) if it is
  /// missing, as in a run of an earlier version; `content` describes it: "its tokenizer".
  absl::StatusOr<std::string> file(const std::string& name, const std::string& content) const;

  /// Refuses to replace an existing file unless --overwrite was given to the command: cli.word (exit code 2).
  absl::Status check_output(const std::string& path) const;

  /// Loads the model that `factory` makes, and prints the weights and devices as one line on stderr. While the model
  /// runs over many rows, the progress is shown on stderr in units of `unit`.
  template <class Factory>
  absl::StatusOr<Predictor> load(Factory factory, const std::string& unit = "rows") const {
    auto loaded = Predictor::open(path, std::move(factory), options_with_progress(unit));
    if (loaded.ok()) announce(*loaded);
    return loaded;
  }

 private:
  PredictorOptions options_with_progress(const std::string& unit) const;
  void announce(const Predictor& predictor) const;
};

/// A command that uses a trained run: `trainkit-hsi predict RUN --cube scene.mat`. The words after its name are RUN,
/// then further words, then flags. A flag of the trainer that is used by the command (it is in `flags`, or
/// OptionSpec::modes has the name, or modes::kRun, kDevice or kRows) overrides a setting of the run, any other is
/// refused (cli.unused); flags of devices do not come from the run.
struct RunCommand {
  std::string name;
  /// One line, also the description in --help of the command.
  std::string summary;
  /// Words in the usage line: one is needed for each, or RUN alone with "...".
  std::string words = "RUN";
  std::vector<std::string> examples = {};
  /// Flags that --help lists before those of devices: the command's own, and some of the trainer.
  std::vector<std::string> flags = {};
  /// Adds the command's own flags. May be empty.
  std::function<void(ConfigParser& parser)> add_flags = {};
  /// Whether the command uses one device: the flags of several and of the loader are refused. `on_cpu`: whether it
  /// always computes in fp32 on the CPU, so that those of the device are too.
  bool one_device = false;
  bool on_cpu = false;
  /// Runs the command and returns the exit code. It must not write into the run's folder.
  std::function<absl::StatusOr<int>(TrainedRun& run)> body;
};

/// Makes a command from one that uses a run of `app`. `app` must outlive it. The command opens RUN by reading its
/// config.yaml with the trainer's own parser. Errors: those of ConfigParser (exit codes 2 and 3), of find_weights (5),
/// and of resolve_devices.
AppCommand command_on_run(App& app, RunCommand command);

/// Makes the command `PROGRAM export RUN OUT.onnx`, which writes a trained model as an ONNX file (onnx/onnx.h). `make`
/// returns it for a run; the command sets its devices to the CPU and its precision to fp32, and adds the step of the
/// weights and the name of the program to the file. `add_flags` may be empty.
AppCommand export_command(App& app, std::function<absl::StatusOr<OnnxModel>(TrainedRun& run)> make,
                          std::function<void(ConfigParser& parser)> add_flags = {},
                          std::vector<std::string> flags = {});

/// What `predict` computes: the model of a run, its task, and rows without a known truth.
struct RowsToPredict {
  std::function<std::shared_ptr<torch::nn::Module>()> make_model;
  std::shared_ptr<Task> task;
  std::shared_ptr<const Dataset> dataset;
  /// Name of each row. Empty: its number, from 0.
  std::function<std::string(int64_t row)> row_name = {};
  /// Lines for the user after the predictions.
  std::vector<std::string> notes = {};
};

/// Makes the command `PROGRAM predict RUN FILE`, which writes Task::prediction of each row as a csv file. `make` opens
/// the rows that run.words name, at least one; `words` are these words in the help. An unreadable row stays empty.
AppCommand predict_command(App& app, std::function<absl::StatusOr<RowsToPredict>(TrainedRun& run)> make,
                           const std::string& words = "FILE");

/// Returns the error (exit code 2) for a word that a command needs or cannot take: "FILE: not given".
absl::Status bad_word(const std::string& word, const std::string& problem, const std::string& expected = "",
                      const std::string& hint = "");

}  // namespace trainkit
