// The table flag x mode of every trainer, from the parsers' own declarations: each flag is used in a mode, or refused.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "apps/program.h"
#include "apps/runs.h"
#include "emotion_recognition/app.h"
#include "gpt2_recommender/app.h"
#include "hsi_classification/app.h"
#include "test_util.h"
#include "trainkit/app/app.h"
#include "trainkit/core/error.h"
#include "transformer/app.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

using Names = std::vector<std::string>;

struct TrainerModes {
  std::function<std::unique_ptr<App>()> make;
  /// Its commands, each with its modes other than its name.
  std::map<std::string, Names> commands;
  /// Its modes instead of training.
  Names modes = {};
};

const Names kRows = {modes::kRun, modes::kDevice, modes::kRows}, kOneDevice = {modes::kRun, modes::kDevice},
            kOnCpu = {modes::kRun};

const std::map<std::string, TrainerModes>& trainer_modes() {
  static const std::map<std::string, TrainerModes> all = {
      {"transformer",
       {[] { return std::make_unique<transformer::TransformerApp>(); }, {{"evaluate", kRows}}, {"sample"}}},
      {"hsi", {[] { return std::make_unique<hsi::HsiApp>(); }, {{"predict", kRows}, {"export", kOnCpu}}}},
      {"emotion", {[] { return std::make_unique<emotion::EmotionApp>(); }, {{"predict", kRows}, {"export", kOnCpu}}}},
      {"gpt2rec",
       {[] { return std::make_unique<rec::RecommenderApp>(); },
        {{"recommend", kOneDevice}, {"similar", kOneDevice}, {"export", kOnCpu}}}}};
  return all;
}

/// A trainer's command line.
struct Line {
  explicit Line(const TrainerModes& trainer) : app(trainer.make()) {
    app->set_defaults(run);
    add_run_flags(parser, run);
    app->add_flags(parser);
  }
  std::unique_ptr<App> app;
  RunOptions run;
  ConfigParser parser{{.name = "trainer"}};
};

bool is_parsed(const TrainerModes& trainer, const Names& words, std::string& expected) {
  Line line(trainer);
  const absl::Status status = line.parser.parse(words).status();
  if (const auto error = error_of(status)) expected = error->expected;
  return status.ok();
}

/// A flag with a value that it accepts: of a choice, the first that the error for another value names.
Names example(const TrainerModes& trainer, const std::string& name, const Names& not_among = {}) {
  std::string expected;
  for (const char* value : {"", "2", "64", "0.5", "cpu", "0 1"}) {
    Names words = {"--" + name};
    if (*value != '\0') words.emplace_back(value);
    const bool excluded = std::find(not_among.begin(), not_among.end(), *value ? value : "true") != not_among.end();
    if (!excluded && is_parsed(trainer, words, expected)) return words;
  }
  for (size_t begin = 0; begin < expected.size();) {
    const size_t end = std::min(expected.find_first_of(", ", begin), expected.size());
    const std::string value = expected.substr(begin, end - begin);
    std::string ignored;
    const bool excluded = std::find(not_among.begin(), not_among.end(), value) != not_among.end();
    if (!value.empty() && !excluded && is_parsed(trainer, {"--" + name, value}, ignored)) return {"--" + name, value};
    begin = end + 1;
  }
  throw std::runtime_error("no value for --" + name);
}

/// The words that meet the needs of a flag.
Names met_needs(const TrainerModes& trainer, const std::vector<OptionNeed>& needs) {
  Names words;
  for (const OptionNeed& need : needs) {
    if (!need.excludes && need.values.front().empty()) continue;  // not given
    Names more = need.excludes              ? example(trainer, need.option, need.values)
                 : need.values[0] == "true" ? Names{"--" + need.option}
                                            : Names{"--" + need.option, need.values[0]};
    words.insert(words.end(), more.begin(), more.end());
  }
  return words;
}

bool shares(const Names& a, const Names& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](const std::string& each) { return std::find(b.begin(), b.end(), each) != b.end(); });
}

void check_refusal(const absl::Status& status, const std::string& flag, const std::string& text) {
  INFO(error_text(status));
  const auto error = error_of(status);
  REQUIRE(error);
  CHECK(error->id == "cli.unused");
  CHECK(exit_code(status) == ExitCode::kUsage);
  CHECK(error->field == flag);
  CHECK_THAT(error->problem, Catch::Contains(text));
  CHECK_FALSE(error->hint.empty());
}

/// The folder of a run that commands accept, until they open its model.
std::string empty_run(const TempDir& dir) {
  std::ofstream(dir / "config.yaml") << "seed: 0\n";
  std::ofstream(dir / "best.safetensors", std::ios::binary) << std::string("\x08\0\0\0\0\0\0\0{}      ", 16);
  return dir.path().string();
}

}  // namespace

TEST_CASE("Every flag of every trainer says in which modes it is used, and no flag names a mode that does not exist",
          "[tool][flags]") {
  for (const auto& [name, trainer] : trainer_modes()) {
    Line line(trainer);
    std::set<std::string> known = {modes::kTrain, modes::kDemoData, modes::kRun, modes::kDevice, modes::kRows}, seen;
    known.insert(trainer.modes.begin(), trainer.modes.end());
    for (const auto& [command, ignored] : trainer.commands) known.insert(command);
    for (const auto& use : line.parser.uses()) {
      INFO(name << " --" << use.name << ": set OptionSpec::modes at its declaration");
      CHECK_FALSE(use.modes.empty());
      for (const std::string& mode : use.modes) CHECK(known.count(mode) == 1);
      seen.insert(use.modes.begin(), use.modes.end());
    }
    for (const std::string& mode : trainer.modes) CHECK(seen.count(mode) == 1);
  }
}

TEST_CASE("In each mode a flag that is used is accepted, and any other is refused in one line", "[tool][flags]") {
  for (const auto& [name, trainer] : trainer_modes()) {
    Names modes_of_trainer = {modes::kTrain, modes::kDemoData};
    modes_of_trainer.insert(modes_of_trainer.end(), trainer.modes.begin(), trainer.modes.end());
    for (const auto& use : Line(trainer).parser.uses()) {
      const Names flag = example(trainer, use.name);
      for (const std::string& mode : modes_of_trainer) {
        INFO(name << " " << mode << " --" << use.name);
        Line line(trainer);
        Names words = met_needs(trainer, use.needs);
        words.insert(words.end(), flag.begin(), flag.end());
        REQUIRE(line.parser.parse(words).ok());
        Names all_modes = use.modes;  // the flags that meet the needs are not the ones to test
        for (const auto& other : line.parser.uses()) {
          if (other.name != use.name) line.parser.set_modes(other.name, {});
        }
        const absl::Status status = line.parser.check_used({{mode}, "in this mode"});
        if (shares(all_modes, {mode})) {
          CHECK(status == absl::OkStatus());
        } else {
          check_refusal(status, "--" + use.name, "has no effect in this mode");
        }
      }
    }
  }
}

TEST_CASE("A flag without the option that it needs is refused, with the option", "[tool][flags]") {
  const std::vector<std::tuple<std::string, Names, std::string, std::string>> cases = {
      {"transformer", {"--vocab", "v.json"}, "with --tokenizer char", "--tokenizer gpt2"},
      {"transformer", {"--patience", "3"}, "with --scheduler cosine", "--scheduler plateau"},
      {"transformer", {"--max_nonfinite", "3"}, "with --on_nonfinite fail", "--on_nonfinite other than fail"},
      {"transformer",
       {"--tensorboard_dir", "tb", "--no-use_tensorboard"},
       "without --use_tensorboard",
       "--use_tensorboard"},
      {"transformer", {"--keep_last", "2", "--save_every", "0"}, "with --save_every 0", "--save_every other than 0"},
      {"transformer", {"--prefetch_factor", "2", "--num_workers", "0"}, "with --num_workers 0", "--num_workers other"},
      {"transformer", {"--json"}, "without --dry_run", "--dry_run"},
      {"emotion",
       {"--image_size", "64", "--modality", "audio"},
       "with --modality audio",
       "--modality other than audio"},
      {"emotion",
       {"--lr_audio", "1", "--modality", "visual"},
       "with --modality visual",
       "--modality other than visual"},
      {"emotion", {"--train_csv", "a.csv"}, "with --dataset MELD", "--dataset csv"},
      {"gpt2rec", {"--lora_alpha", "4"}, "with --lora_rank 0", "--lora_rank other than 0"},
      {"gpt2rec", {"--n_layer", "3", "--model", "bpr_mf"}, "with --model bpr_mf", "--model gpt2"},
      {"gpt2rec", {"--n_layer", "3", "--gpt2", "folder"}, "with --gpt2 folder", "no --gpt2"},
      {"hsi", {"--block_size", "4"}, "with --split random", "--split disjoint"},
      {"hsi", {"--train_ratio", "0.5", "--split", "split.json"}, "--split", "--split random or disjoint"},
      {"hsi", {"--dropout", "0.1"}, "with --model cnn2d", "--model mlp or hybridsn"}};
  for (const auto& [name, words, problem, expected] : cases) {
    Line line(trainer_modes().at(name));
    REQUIRE(line.parser.parse(words).ok());
    const absl::Status status = line.parser.check_used({{modes::kTrain}, "in training"});
    check_refusal(status, words.front(), problem);
    CHECK_THAT(error_of(status)->expected, Catch::Contains(expected));
  }
}

TEST_CASE("Settings of a preset or a file are no flags: those without effect are accepted", "[tool][flags]") {
  const TempDir dir;
  std::ofstream(dir / "run.yaml") << "patience: 3\nlora_alpha: 4\n";
  Line file(trainer_modes().at("gpt2rec")), preset(trainer_modes().at("emotion"));
  REQUIRE(file.parser.parse({"--config", dir / "run.yaml"}).ok());
  CHECK(file.parser.check_used({{modes::kDemoData}, "with --make_demo_data"}) == absl::OkStatus());
  REQUIRE(preset.parser.parse({"--preset", "audio_only"}).ok());
  CHECK(preset.parser.check_used({{modes::kTrain}, "in training"}) == absl::OkStatus());
}

TEST_CASE("Each command on a run uses a flag of its trainer or refuses it", "[tool][flags]") {
  const TempDir dir;
  const std::string run = empty_run(dir);
  for (const auto& [name, trainer] : trainer_modes()) {
    const auto uses = Line(trainer).parser.uses();
    for (const auto& [command, more] : trainer.commands) {
      for (const auto& use : uses) {
        const auto app = trainer.make();
        Names used_in = more, words = {run};
        used_in.push_back(command);
        if (command == "export") words.push_back(dir / "model.onnx");
        const Names flag = example(trainer, use.name);
        words.insert(words.end(), flag.begin(), flag.end());
        INFO(name << " " << command << " --" << use.name);
        const auto commands = app->commands();
        const auto found = std::find_if(commands.begin(), commands.end(),
                                        [&, wanted = command](const AppCommand& each) { return each.name == wanted; });
        REQUIRE(found != commands.end());
        const absl::Status status = found->run(words).status();  // fails: the run has no model
        REQUIRE_FALSE(status.ok());
        // A command that writes a file has --overwrite too, with another meaning.
        const bool is_overwrite = use.name == "overwrite" && command != "evaluate" && command != "similar";
        const bool is_used = shares(use.modes, used_in) || is_overwrite;
        const auto error = error_of(status);
        if (!is_used) check_refusal(status, "--" + use.name, "has no effect in trainkit-" + name + " " + command);
        if (is_used && use.needs.empty()) CHECK((!error || error->id != "cli.unused"));
      }
    }
  }
}

TEST_CASE("The programs refuse a flag without effect before they do anything", "[tool][flags]") {
  const TempDir dir;
  const std::vector<std::tuple<const char*, Names, const char*>> cases = {
      {"trainkit-transformer",
       {"--make_demo_data", dir / "demo", "--seed", "3"},
       "error[cli.unused] --seed: has no effect with --make_demo_data"},
      {"trainkit-hsi",
       {"--make_demo_data", dir / "demo", "--lr", "3"},
       "error[cli.unused] --lr: has no effect with --make_demo_data"},
      {"trainkit-transformer",
       {"--sample", "a", "--output_dir", dir / "run", "--lr", "3"},
       "error[cli.unused] --lr: has no effect with --sample"},
      {"trainkit-transformer",
       {"--input", dir / "none.txt", "--output_dir", dir / "run", "--shard", "optimizer"},
       "error[cli.unused] --shard: has no effect with --parallel 1"},
      {"trainkit-transformer",
       {"--input", dir / "none.txt", "--output_dir", dir / "run", "--dist_timeout", "9"},
       "error[cli.unused] --dist_timeout: has no effect with --strategy single (expected --strategy ddp)"},
      {"trainkit",
       {"scale", "--step_seconds", "1", "--gradient_mb", "1", "--inside", "pcie4", "--between", "eth100"},
       "error[cli.unused] --between: has no effect with --nodes 1"},
      {"trainkit",
       {"doctor", "--verify_seconds", "3"},
       "error[cli.unused] --verify_seconds: has no effect without --verify"},
      {"trainkit",
       {"plan", "--app", "transformer", "--gpu_memory", "8GiB", "--efficiency", "0.5"},
       "error[cli.unused] --efficiency: has no effect without --gpu"}};
  for (const auto& [program, flags, text] : cases) {
    const Ended ended = run_to_end(program, flags, dir.path().string());
    INFO(program << " " << fmt::format("{}", fmt::join(flags, " ")) << "\n" << ended.errors);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Catch::Contains(text));
  }
  CHECK_FALSE(std::filesystem::exists(dir / "run"));
  CHECK_FALSE(std::filesystem::exists(dir / "demo"));
}
