#pragma once
/// Subcommands of a trainer. Those that use a trained run share its settings, devices and progress.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/app/predictor.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"

namespace trainkit {

class App;

/// A subcommand of a trainer: `trainkit-hsi benchmark --gpus 4`. App::commands lists them.
struct AppCommand {
  std::string name;
  /// One line for --help of the program.
  std::string summary;
  /// Runs the command with the words after its name, and returns the exit code.
  std::function<absl::StatusOr<int>(const std::vector<std::string>& words)> run;
};

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

  /// Loads the model that `factory` makes, and prints the weights and devices as one line on stderr. While the model
  /// runs over many rows, the progress is shown on stderr in units of `unit`.
  template <class Factory>
  absl::StatusOr<Predictor> load(Factory factory, const std::string& unit = "rows") const {
    auto loaded = Predictor::open(path, std::move(factory), options_with_progress(unit));
    if (loaded.ok()) announce(*loaded);
    return loaded;
  }

  PredictorOptions options_with_progress(const std::string& unit) const;
  void announce(const Predictor& predictor) const;
};

/// A command that uses a trained run: `trainkit-hsi predict RUN --cube scene.mat`. The words after its name are RUN,
/// then further words, then flags. Every flag of the trainer is allowed and overrides a setting of the run; flags of
/// devices do not come from the run.
struct RunCommand {
  std::string name;
  /// One line, also the description in --help of the command.
  std::string summary;
  /// Words in the usage line before the flags.
  std::string words = "RUN";
  std::vector<std::string> examples = {};
  /// Flags that --help lists before those of devices: the command's own, and some of the trainer.
  std::vector<std::string> flags = {};
  /// Adds the command's own flags. May be empty.
  std::function<void(ConfigParser& parser)> add_flags = {};
  /// Runs the command and returns the exit code. It must not write into the run's folder.
  std::function<absl::StatusOr<int>(TrainedRun& run)> body;
};

/// Makes a command from one that uses a run of `app`. `app` must outlive it. The command opens RUN by reading its
/// config.yaml with the trainer's own parser. Errors: those of ConfigParser (exit codes 2 and 3), of find_weights (5),
/// and of resolve_devices.
AppCommand command_on_run(App& app, RunCommand command);

/// Returns the error (exit code 2) for a word that a command needs or cannot take: "FILE: not given".
absl::Status bad_word(const std::string& word, const std::string& problem, const std::string& expected = "",
                      const std::string& hint = "");

}  // namespace trainkit
