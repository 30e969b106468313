// Files of the user in every place where a program writes.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "app/run/run_files.h"
#include "apps/demo_data.h"
#include "apps/program.h"
#include "apps/runs.h"
#include "logging/event_files.h"
#include "report/run_file.h"
#include "test_util.h"
#include "trainkit/core/error.h"

using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

using Words = std::vector<std::string>;

constexpr char kMine[] = "text of the user\n";

/// A trainer, the flags of a run of a few steps, and the files of its own.
struct TestedTrainer {
  std::string program;
  Words flags;
  std::vector<std::string> files;
};

/// Small data for each trainer, and a run of each.
class World {
 public:
  static const World& get() {
    static const World made;
    return made;
  }

  std::vector<TestedTrainer> trainers() const {
    return {{"trainkit-transformer",
             {"--input", dir / "text.txt", "--hidden_dim", "16", "--n_layers", "1", "--block_size", "16",
              "--batch_size", "4", "--grad_accum_steps", "1", "--sample_tokens", "5"},
             {"tokenizer.json"}},
            {"trainkit-hsi",
             {"--cube", dir / "hsi/demo.mat", "--gt", dir / "hsi/demo_gt.mat", "--model", "cnn2d", "--patch_size", "5",
              "--train_ratio", "0.1"},
             {"split.json", "scene.safetensors"}},
            {"trainkit-gpt2rec",
             {"--data_dir", dir / "rec/ml-100k", "--model", "bpr_mf", "--embed_dim", "8", "--batch_size", "32"},
             {"catalog.json", "split.tsv", "split.index"}},
            {"trainkit-emotion",
             {"--data_dir", dir / "emotion", "--modality", "audio", "--model_size", "simple", "--audio_seconds", "1",
              "--batch_size", "16"},
             {"labels.json"}}};
  }

  /// Folder of the run of a trainer.
  std::string run_of(const std::string& program) const { return dir / ("run-" + program); }

  Ended start(const std::string& program, const Words& words) const {
    return run_to_end(program, words, dir.path().string());
  }

  Ended train(const TestedTrainer& trainer, const std::string& output_dir, Words more = {}) const {
    more.insert(more.end(), trainer.flags.begin(), trainer.flags.end());
    if (std::find(more.begin(), more.end(), "--max_steps") == more.end()) more.insert(more.end(), {"--max_steps", "2"});
    more.insert(more.end(), {"--output_dir", output_dir, "--save_every", "2", "--log_every", "1", "--eval_every", "2",
                             "--device", "cpu", "--no-plan_memory"});
    return start(trainer.program, more);
  }

  TempDir dir;

 private:
  World() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i * i) + " of a small text\n";
    std::ofstream(dir / "text.txt") << text;
    for (const auto& [program, folder] :
         {std::pair("trainkit-hsi", "hsi"), {"trainkit-gpt2rec", "rec"}, {"trainkit-emotion", "emotion"}}) {
      copy_demo_data(program, dir / folder);
    }
    for (const TestedTrainer& trainer : trainers()) check(train(trainer, run_of(trainer.program)));
  }

  static void check(const Ended& ended) {
    if (ended.code != 0) throw std::runtime_error(ended.errors);
  }
};

std::string put(const std::string& path, const std::string& text = kMine) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

/// Starts a program that would replace the user's file `path`: it is refused in one line that names the file.
void check_refused(const std::string& program, const Words& words, const std::string& path) {
  const World& world = World::get();
  const std::string before = read_text(path);
  const Ended ended = world.start(program, words);
  INFO(program << " " << (words.empty() ? "" : words[0]) << " with " << path << "\n" << ended.errors);
  CHECK(ended.code == 2);
  const std::string line = ended.errors.substr(0, ended.errors.find('\n'));
  CHECK(line.starts_with("trainkit: error["));
  CHECK_THAT(line, Catch::Contains(path));
  CHECK(split_lines(ended.errors).size() <= 2);
  CHECK(read_text(path) == before);
}

}  // namespace

TEST_CASE("Each file that a trainer leaves is known as its own", "[apps][foreign_files]") {
  const World& world = World::get();
  for (const TestedTrainer& trainer : world.trainers()) {
    const std::string run = world.run_of(trainer.program);
    const trainkit::detail::RunFiles files(run, trainer.files);
    CAPTURE(trainer.program);
    CHECK(files.has_list());
    CHECK(files.check() == absl::OkStatus());
    const std::set<fs::path> own(files.own().begin(), files.own().end());
    for (const auto& entry : fs::recursive_directory_iterator(run)) {
      const fs::path file = fs::relative(entry.path(), run);
      const bool is_checkpoint = own.contains(file.parent_path());
      const bool is_text = file.extension() == ".tokens" || file.string().ends_with(".tokens.json");
      if (!entry.is_regular_file() || is_checkpoint || is_text) continue;
      CAPTURE(file);
      CHECK(own.contains(file));
    }
    for (const std::string& file : trainer.files) CHECK(own.contains(file));
  }
}

TEST_CASE("A new run of a trainer replaces no file of the user in its folder", "[apps][foreign_files]") {
  const World& world = World::get();
  const TempDir dir;
  for (const TestedTrainer& trainer : world.trainers()) {
    const std::string name = trainer.files.front();
    Words flags = {"--overwrite", "--output_dir", dir / trainer.program};
    flags.insert(flags.end(), trainer.flags.begin(), trainer.flags.end());
    check_refused(trainer.program, flags, put(dir / (trainer.program + "/" + name)));
    CHECK(std::distance(fs::directory_iterator(dir / trainer.program), {}) == 1);
    // A file of an earlier run that the user has changed, or added to its results.
    fs::copy(world.run_of(trainer.program), dir / "copy", fs::copy_options::recursive);
    flags[2] = dir / "copy";
    for (const std::string& file : {name, std::string("results/notes.txt")}) {
      const std::string path = dir / ("copy/" + file), before = read_text(path);
      check_refused(trainer.program, flags, put(path));
      before.empty() ? void(fs::remove(path)) : void(put(path, before));
    }
    const Ended ended = world.train(trainer, dir / "copy", {"--overwrite"});
    INFO(ended.errors);
    CHECK(ended.code == 0);
    fs::remove_all(dir / "copy");
  }
}

TEST_CASE("--config in the folder of a new run is refused", "[apps][foreign_files]") {
  const TempDir dir;
  const std::string config = put(dir / "run/config.yaml", "max_steps: 2\n");
  check_refused("trainkit-transformer", {"--config", config, "--output_dir", dir / "run"}, config);
}

TEST_CASE("A prepared text replaces no file in --data_dir", "[apps][foreign_files]") {
  const World& world = World::get();
  const TempDir dir;
  TestedTrainer trainer = world.trainers()[0];
  const std::string data = dir / "data";
  put(data + "/corpus.txt");
  put(data + "/validation.txt");
  put(dir / "texts/a.txt", read_text(world.dir / "text.txt"));
  put(dir / "texts/b.txt", read_text(world.dir / "text.txt"));
  trainer.flags[1] = dir / "texts";
  const Ended ended = world.train(trainer, dir / "run", {"--data_dir", data});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(data)) names.insert(entry.path().filename().string());
  CHECK(names ==
        std::set<std::string>{"corpus.char.tokens", "corpus.char.tokens.json", "corpus.txt", "validation.txt"});
  CHECK(read_text(data + "/corpus.txt") == kMine);
  Words flags = trainer.flags;
  flags.insert(flags.end(), {"--data_dir", data, "--output_dir", dir / "other"});
  check_refused(trainer.program, flags, put(data + "/corpus.char.tokens"));
}

TEST_CASE("Runs that share --tensorboard_dir keep each other's event files", "[apps][foreign_files]") {
  const World& world = World::get();
  const TempDir dir;
  const std::string shared = dir / "shared";
  const auto files_of = [&](const std::string& run) {
    std::map<std::string, std::string> files;
    const std::string id = trainkit::detail::read_run_id(dir / run);
    for (const auto& entry : fs::directory_iterator(shared)) {
      const std::string name = entry.path().filename().string();
      if (trainkit::detail::is_event_file_of(name, id)) files[name] = read_text(entry.path().string());
    }
    return files;
  };
  const TestedTrainer trainer = world.trainers()[0];
  const auto train = [&](const std::string& run, Words more = {}) {
    more.insert(more.end(), {"--tensorboard_dir", shared});
    const Ended ended = world.train(trainer, dir / run, more);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
  };
  train("first");
  const auto first = files_of("first");
  REQUIRE(first.size() == 1);
  train("second");
  const auto second = files_of("second");
  REQUIRE(second.size() == 1);
  train("second", {"--overwrite"});
  CHECK(files_of("second").size() == 1);
  CHECK(files_of("second") != second);
  train("second", {"--resume", "latest", "--max_steps", "4"});
  CHECK(files_of("first") == first);
  CHECK(std::distance(fs::directory_iterator(shared), {}) >= 2);
}

TEST_CASE("A command replaces no file of the user", "[apps][foreign_files]") {
  const World& world = World::get();
  const TempDir dir;
  const std::string hsi = world.run_of("trainkit-hsi"), rec = world.run_of("trainkit-gpt2rec");
  const std::string emotion = world.run_of("trainkit-emotion"), cube = world.dir / "hsi/demo.mat";
  const std::string mine = put(dir / "mine"), onnx = put(dir / "mine.onnx"), weights = put(dir / "mine.pt");
  for (const std::string name : {"map.png", "classes.npy", "probabilities.npy", "classes.csv"}) {
    const std::string out = dir / (name.substr(0, 1) + name.substr(name.size() - 3));
    check_refused("trainkit-hsi", {"predict", hsi, "--cube", cube, "--out", out}, put(out + "/" + name));
  }
  const std::string clip = world.dir / "emotion/train_splits/dia0_utt0.mp4";
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"trainkit-hsi", "export", hsi, onnx}, onnx},
      {{"trainkit-hsi", "benchmark", "--json", mine}, mine},
      {{"trainkit-hsi", "sweep", "--json", mine}, mine},
      {{"trainkit-hsi", "quick_perf_test", "--json", mine}, mine},
      {{"trainkit-gpt2rec", "recommend", rec, "--all_users", mine}, mine},
      {{"trainkit-gpt2rec", "export", rec, onnx}, onnx},
      {{"trainkit-emotion", "predict", emotion, clip, "--out", mine}, mine},
      {{"trainkit-emotion", "export", emotion, onnx}, onnx},
      {{"trainkit", "export", hsi, weights}, weights},
      {{"trainkit", "export", hsi, onnx}, onnx},
      {{"trainkit", "report", hsi, "--out", mine}, mine},
      {{"trainkit", "report", hsi, "--csv", mine}, mine},
      {{"trainkit", "scale", "--step_seconds", "0.1", "--gradient_mb", "1", "--devices", "2", "--inside", "pcie4",
        "--plot", mine},
       mine},
      {{"trainkit", "doctor", "--quick", "--report", mine}, mine}};
  for (const auto& [words, path] : cases) check_refused(words[0], {words.begin() + 1, words.end()}, path);
  fs::copy(hsi, dir / "run", fs::copy_options::recursive);
  check_refused("trainkit", {"report", dir / "run"}, put(dir / "run/report.html", "<!doctype html>\n<html>mine"));
  put(dir / "folder/mine");
  for (const TestedTrainer& trainer : world.trainers()) {
    const Ended ended = world.start(trainer.program, {"--make_demo_data", dir / "folder"});
    CHECK(ended.code == 2);
  }
  CHECK(world.start("trainkit", {"verify-resume", "--folder", dir / "folder", "--", "true"}).code == 2);
  CHECK(std::distance(fs::directory_iterator(dir / "folder"), {}) == 1);
}

TEST_CASE("A command replaces its own earlier output, or any with --overwrite", "[apps][foreign_files]") {
  const World& world = World::get();
  const TempDir dir;
  const std::string rec = world.run_of("trainkit-gpt2rec"), hsi = world.run_of("trainkit-hsi");
  const std::vector<std::pair<Words, Words>> cases = {
      {{"trainkit", "report", hsi, "--out", dir / "page.html", "--csv", dir / "table.csv"}, {}},
      {{"trainkit", "report", hsi}, {}},
      {{"trainkit", "scale", "--step_seconds", "0.1", "--gradient_mb", "1", "--devices", "2", "--inside", "pcie4",
        "--plot", dir / "plot.svg"},
       {}},
      {{"trainkit", "doctor", "--quick", "--report", dir / "doctor.txt"}, {}},
      {{"trainkit", "doctor", "--quick", "--report", dir / "doctor.json"}, {}},
      {{"trainkit-hsi", "benchmark", "--seconds", "0.01", "--bands", "8", "--patch_size", "5", "--model", "cnn2d",
        "--batch_size", "8", "--device", "cpu", "--feed", "device", "--json", dir / "bench.json"},
       {}},
      {{"trainkit-gpt2rec", "recommend", rec, "--all_users", dir / "lists.csv"}, {"--overwrite"}}};
  for (const auto& [words, more] : cases) {
    Words again(words.begin() + 1, words.end());
    const Ended first = world.start(words[0], again);
    again.insert(again.end(), more.begin(), more.end());
    const Ended second = world.start(words[0], again);
    INFO(words[1] << "\n" << first.errors << second.errors);
    CHECK(first.code == 0);
    CHECK(second.code == 0);
  }
}

TEST_CASE("The cache of clips replaces no file of the user", "[apps][foreign_files]") {
  const World& world = World::get();
  const TempDir dir;
  const TestedTrainer trainer = world.trainers()[3];
  const Ended ended = world.train(trainer, dir / "run", {"--cache_dir", dir / "cache"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  std::string part;
  for (const auto& entry : fs::directory_iterator(dir / "cache")) {
    if (entry.path().filename().string().starts_with("train-")) part = entry.path().string();
  }
  REQUIRE(!part.empty());
  Words flags = trainer.flags;
  flags.insert(flags.end(), {"--device", "cpu", "--cache_dir", dir / "cache", "--output_dir", dir / "other"});
  for (const char* name : {"/rows", "/bad.json"}) {
    fs::remove(part + name);
    const std::string path = put(part + name);
    const Ended refused = world.start(trainer.program, flags);
    INFO(refused.errors);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.errors, Catch::Contains("error[storage.foreign] " + path));
    CHECK(read_text(path) == kMine);
    fs::remove(path);
  }
}

TEST_CASE("All files of a run follow the umask, and no other user may write them", "[apps][foreign_files]") {
  const World& world = World::get();
  for (const mode_t mask : {022, 002, 077, 0}) {
    const TempDir dir;
    const mode_t before = umask(mask);
    const Ended ended = world.train(world.trainers()[0], dir / "run");
    const Ended resumed = world.train(world.trainers()[0], dir / "run", {"--resume", "latest", "--max_steps", "4"});
    umask(before);
    INFO(ended.errors << resumed.errors);
    REQUIRE(ended.code == 0);
    CHECK(resumed.code == 0);  // its checkpoint folder is not refused
    for (const auto& entry : fs::recursive_directory_iterator(dir / "run")) {
      const auto mode = static_cast<mode_t>(entry.status().permissions());
      CAPTURE(mask, entry.path());
      CHECK(mode == ((entry.is_directory() ? 0775 : 0664) & ~mask));
    }
  }
}
