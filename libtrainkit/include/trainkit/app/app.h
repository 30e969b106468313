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
#include <vector>

#include "trainkit/app/command.h"
#include "trainkit/app/memory_plan.h"
#include "trainkit/app/placement.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/core/processors.h"
#include "trainkit/data/dataset.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/logging/logger.h"
#include "trainkit/train/best_model.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/step_memory.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// Name, description and examples of --help.
struct AppInfo {
  /// Also the name of the W&B project.
  std::string name;
  std::string description;
  std::vector<std::string> examples = {};
};

/// The settings of one run. References stay valid until run_app() returns.
struct RunContext {
  const ConfigParser& parser;
  RunOptions& run;
  const Machine& machine;
  Placement& placement;

  /// Prints a line on stdout, on rank 0 alone.
  void print(const std::string& line) const;
};

/// A model, its data and its loss.
struct TrainingTask {
  /// Needs make_model and loss. Defaults: AdamW with --lr and --weight_decay, and `training_set` for the memory plan.
  StepRecipe recipe;
  std::shared_ptr<const Dataset> training_set;
  /// nullptr: no evaluation.
  std::shared_ptr<const Dataset> validation_set = nullptr;
  /// The loss of training and of evaluation. Null: recipe.loss.
  LossFunction loss = nullptr;
  LossFunction validation_loss = nullptr;
  /// The optimizer of a given model, for parameter groups with settings of their own. Null: recipe.make_optimizer.
  std::function<std::unique_ptr<Optimizer>(const torch::nn::Module& model)> make_optimizer = nullptr;
  /// Learning rate at the end of the schedule, as a share of --lr.
  double final_lr_share = 0;
  /// Keep the weights of the best evaluation in `best.safetensors`.
  bool keep_best = false;
  /// Facts about the data for the first lines of the run: {{"data", "150 rows of 4 features"}}.
  RunFacts description = {};
};

/// A trained model, for App::test.
struct TrainedModel {
  DeviceReplicator& devices;
  const TrainerResult& result;
  Precision precision;
  /// Records of the test go here.
  Logger& logger;
  /// nullptr without TrainingTask::keep_best. restore() loads the best weights into one replica: synchronize() then.
  const BestModel* best;
};

/// A trainer. run_app() calls the functions in the order of this class, all on the calling thread. Only info() and
/// open() must be overridden.
///
///   class Classifier final : public trainkit::App {
///     AppInfo info() const override { return {.name = "classifier", .description = "Classifies .npy rows."}; }
///     absl::StatusOr<TrainingTask> open(RunContext& context) override { ... }
///   };
///   int main(int argc, char** argv) { Classifier app; return trainkit::run_app(argc, argv, app); }
class App {
 public:
  virtual ~App() = default;

  // ---- Flags

  /// Returns the subcommands of the program, for example command_on_run(*this, ...) for `trainkit-hsi predict`. A
  /// command line without one trains.
  virtual std::vector<AppCommand> commands();
  virtual AppInfo info() const = 0;
  /// Changes defaults of the shared flags.
  virtual void set_defaults(RunOptions& run) const;
  virtual void add_flags(ConfigParser& parser);
  /// Defaults that depend on the device. --help shows those of this machine's device. By default mixed precision is on
  /// with CUDA.
  virtual Settings device_defaults(bool cuda) const;
  /// Writes a small data set to `folder` for --make_demo_data and returns the exit code.
  virtual absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed);
  /// Sets options that follow from other options, before any check.
  virtual absl::Status resolve_options(const ConfigParser& parser, RunOptions& run, const Machine& machine);
  /// Checks rules between flags.
  virtual absl::Status check_options(const ConfigParser& parser, const RunOptions& run) const;
  /// Does something else than training (`--sample`) and returns the exit code; nullopt continues with training.
  virtual absl::StatusOr<std::optional<int>> run_instead(const RunOptions& run, at::Device device);
  /// Runs in a row, of different seeds, and the settings of each.
  virtual int64_t repeats() const { return 1; }
  virtual RunOptions repeat_of(const RunOptions& run, int64_t index) const;

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
  /// Changes the trainer's options: the metric to monitor, what checkpoints keep.
  virtual void configure(RunContext& context, TrainerOptions& options, DeviceReplicator& devices);
  /// Writes files next to the checkpoints before training starts (a tokenizer). Rank 0 alone.
  virtual absl::Status save(const RunOptions& run) const;

  // ---- During training

  /// Adds metrics to an evaluation, on every rank. Must not draw from the default random generators.
  virtual absl::Status on_evaluation(RunContext& context, int64_t step, Metrics& metrics, DeviceReplicator& devices);
  /// Called on rank 0 after an evaluation whose weights were kept as the best.
  virtual absl::Status on_best(RunContext& context, const torch::nn::Module& model);

  // ---- After training

  /// Tests the model, writes results (to results_dir()) and returns the scores for summary.json. Every rank calls it,
  /// also after a signal (TrainerResult::signal).
  virtual absl::StatusOr<Metrics> test(RunContext& context, const TrainedModel& trained);
  /// The scores in the last lines of a run, each line with a line end.
  virtual std::string describe_scores(const RunContext& context, const TrainerResult& result,
                                      const Metrics& scores) const;
  /// Prints more after the last lines, on rank 0, after a run that no signal stopped.
  virtual absl::Status finish(RunContext& context, const TrainedModel& trained);
  /// Combines the scores of several repeats, on rank 0.
  virtual absl::Status finish_repeats(const RunOptions& run, const std::vector<Metrics>& scores);
};

/// Runs a trainer from its command line and returns the exit code of the process (ExitCode of trainkit/core/error.h).
/// Errors go to stderr as one line, see run_program(). Blocks until the run ends.
int run_app(int argc, const char* const* argv, App& app);

}  // namespace trainkit
