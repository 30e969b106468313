// trainkit-hsi as a user runs it: a process with flags, files, exit codes and signals.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/hsi/hsi_place.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/arrays/mat.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

Ended run(const HsiPlace& place, const std::vector<std::string>& flags) {
  return run_to_end("trainkit-hsi", flags, place.dir.path().string());
}

nlohmann::json summary_of(const HsiPlace& place, const std::string& run) {
  return nlohmann::json::parse(read_text(place.dir / run + "/summary.json"));
}

}  // namespace

TEST_CASE("A run writes its folder, its scores with the leak, and maps of the scene", "[apps][hsi]") {
  const HsiPlace place;
  const Ended ended = run(place, place.flags("run", {"--monitor"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  for (const char* name :
       {"config.yaml", "metrics.jsonl", "summary.json", "results/scores.json", "split.json", "tensorboard",
        "results/classification.png", "results/ground_truth.png", "results/errors.png", "results/legend.svg",
        "results/confusion.svg", "results/maps.mat", "checkpoints/latest"}) {
    CHECK(fs::exists(place.dir / "run" + "/" + name));
  }
  for (const char* text : {"scene      ", "split      random", "leak ", "single on cpu", "validation loss",
                           "test       oa ", "\nclass    pixels", "monitor: "}) {
    INFO(ended.output);
    CHECK(ended.output.find(text) != std::string::npos);
  }
  const auto summary = summary_of(place, "run");
  const auto scores = nlohmann::json::parse(read_text(place.dir / "run" + "/results/scores.json"));
  for (const char* name : {"oa", "aa", "kappa", "leak"}) CHECK(summary.at(name) == scores.at(name));
  int64_t right = 0, rows = 0;
  for (size_t i = 0; i < scores.at("confusion").size(); ++i) {
    for (size_t j = 0; j < scores.at("confusion").size(); ++j) {
      const auto count = scores.at("confusion")[i][j].get<int64_t>();
      rows += count;
      right += i == j ? count : 0;
    }
  }
  CHECK(summary.at("oa").get<double>() == Approx(static_cast<double>(right) / static_cast<double>(rows)));
  const auto split = nlohmann::json::parse(read_text(place.dir / "run" + "/split.json"));
  CHECK(static_cast<size_t>(rows) == split.at("test").size());

  const MatFile maps = MatFile::open(place.dir / "run" + "/results/maps.mat").value();
  const at::Tensor classes = maps.read("classification").value(), truth = maps.read("ground_truth").value();
  const at::Tensor parts = maps.read("split").value();
  CHECK(classes.sizes() == at::IntArrayRef({30, 32}));
  CHECK((classes > 0).all().item<bool>());  // every pixel, labelled or not
  CHECK(classes.eq(truth).logical_and(parts == 3).sum().item<int64_t>() == right);
  CHECK((truth.ne(0).logical_xor(parts.ne(0))).any().item<bool>() == false);

  CHECK(summary.at("recall").at("class 2") == scores.at("classes")[1].at("recall"));
  for (const char* name : {"classification", "ground_truth", "errors"}) {
    const std::string png = read_text(place.dir / "run" + "/results/" + name + ".png");  // bytes 16 to 19: its width
    CHECK(static_cast<unsigned char>(png[18]) * 256 + static_cast<unsigned char>(png[19]) == 608);  // 19 * 32 columns
  }
  const std::string report = read_text(place.dir / "run/report.html");
  for (const char* text : {"overall accuracy", "Ground truth", "Errors", "data:image/png;base64,", "Confusion matrix",
                           "class 2", "kappa", "Validation scores"}) {
    CHECK_THAT(report, Catch::Contains(text));
  }
  const auto logged = losses(place.dir / "run");
  CHECK(logged.back().split == "test");
  CHECK(logged.back().loss == summary.at("oa").get<double>());
}

TEST_CASE("Each evaluation logs OA, AA and the recall of each class, the same on several replicas", "[apps][hsi]") {
  const HsiPlace place;
  const auto evaluations = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), {"--validation_share", "0.4"});  // pixels of each class
    const Ended ended = run(place, place.flags(name, std::move(more)));
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK(ended.output.find(" aa ") != std::string::npos);
    CHECK(ended.output.find("recall.") == std::string::npos);  // details are in the files only
    auto records = read_jsonl(place.dir / name + "/metrics.jsonl").value();
    std::erase_if(records, [](const LogRecord& record) { return record.split != "val"; });
    return records;
  };
  const auto one = evaluations("one", {}), two = evaluations("two", {"--parallel", "2", "--global_batch_size", "8"});
  REQUIRE(one.size() == 2);
  REQUIRE(two.size() == 2);
  const auto split = nlohmann::json::parse(read_text(place.dir / "one" + "/split.json"));
  const Scene scene = load_scene({.cube = place.dir / "demo.mat", .gt = place.dir / "demo_gt.mat"}).value();
  std::vector<double> rows(3, 0);
  for (const auto& pixel : split.at("validation")) {
    ++rows[static_cast<size_t>(scene.labels.flatten()[pixel.get<int64_t>()].item<int64_t>() - 1)];
  }
  for (const auto* records : {&one, &two}) {
    for (const LogRecord& record : *records) {
      double right = 0, recalls = 0;
      for (size_t k = 0; k < 3; ++k) {
        const double* recall = record.find("recall.class " + std::to_string(k + 1));
        REQUIRE(recall);
        right += *recall * rows[k];
        recalls += *recall;
      }
      CHECK(*record.find("aa") == Approx(recalls / 3));
      CHECK(*record.find("oa") == Approx(right / static_cast<double>(split.at("validation").size())));
    }
  }
}

TEST_CASE("A class without a validation pixel is a warning at the start and in the summary", "[apps][hsi]") {
  const HsiPlace place;
  // One training pixel of ten goes to validation: a class of nine training pixels has none.
  auto flags = place.flags("run", {"--train_count", "9", "--validation_share", "0.12"});
  const auto ratio = std::find(flags.begin(), flags.end(), "--train_ratio");
  flags.erase(ratio, ratio + 2);
  REQUIRE(run(place, flags).code == 0);
  CHECK_FALSE(summary_of(place, "run").contains("warnings"));
  auto split = nlohmann::json::parse(read_text(place.dir / "run" + "/split.json"));
  const Scene scene = load_scene({.cube = place.dir / "demo.mat", .gt = place.dir / "demo_gt.mat"}).value();
  auto& validation = split["validation"];
  for (size_t i = 0; i < validation.size(); ++i) {
    if (scene.labels.flatten()[validation[i].get<int64_t>()].item<int64_t>() != 2) continue;
    split["train"].push_back(validation[i]);
    validation.erase(validation.begin() + static_cast<int64_t>(i));
    break;
  }
  std::ofstream(place.dir / "split.json") << split.dump();
  const Ended ended = run(place, place.flags("b", {"--split", place.dir / "split.json"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.output, Catch::Contains("warning: no validation pixel of class 2"));
  CHECK(summary_of(place, "b").at("warnings") == nlohmann::json{"no validation pixel of class 2"});
  REQUIRE(run(place, place.flags("two", {"--split", place.dir / "split.json", "--repeats", "2"})).code == 0);
  CHECK(summary_of(place, "two").at("warnings") == nlohmann::json{"no validation pixel of class 2"});
}

TEST_CASE("A scene whose label 0 is a class is learned, mapped and predicted with the names of the classes",
          "[apps][hsi]") {
  const HsiPlace place;
  std::ofstream(place.dir / "names.txt") << "path\ncorn & co\nsoy.bean\noats\n";
  const Ended ended = run(place, place.flags("run", {"--background_class", "none", "--class_names",
                                                     place.dir / "names.txt", "--class_weights", "--epochs", "3"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.output, Catch::Contains("4 classes, every pixel has a class") && Catch::Contains("\nsoy.bean  "));
  const auto split = nlohmann::json::parse(read_text(place.dir / "run" + "/split.json"));
  CHECK(split.at("train").size() + split.at("validation").size() + split.at("test").size() == 30 * 32);
  const auto summary = summary_of(place, "run");
  for (const char* name : {"path", "corn & co", "soy.bean", "oats"}) CHECK(summary.at("recall").contains(name));
  CHECK_THAT(read_text(place.dir / "run" + "/results/confusion.svg"), Catch::Contains(">corn &amp; co</text>"));
  const MatFile maps = MatFile::open(place.dir / "run" + "/results/maps.mat").value();
  const at::Tensor truth = MatFile::open(place.dir / "demo_gt.mat")->read("demo_gt").value();
  CHECK(maps.read("ground_truth")->equal(truth.to(at::kLong)));
  CHECK(maps.read("classification")->eq(0).any().item<bool>());

  const Ended predicted = run(place, {"predict", place.dir / "run", "--cube", place.dir / "demo.mat", "--out",
                                      place.dir / "out", "--device", "cpu"});
  INFO(predicted.errors);
  REQUIRE(predicted.code == 0);
  CHECK_THAT(predicted.output, Catch::Contains("     0  path"));
  CHECK_THAT(read_text(place.dir / "out" + "/classes.csv"), Catch::Contains("2,2,soy.bean"));
  CHECK(read_npy(place.dir / "out" + "/classes.npy")->equal(maps.read("classification")->to(at::kLong)));

  // The run continues from its folder alone: it has stored the names, not the path of their file.
  fs::remove(place.dir / "names.txt");
  const Ended resumed = run(place, {"--output_dir", place.dir / "run", "--resume", "latest", "--epochs", "4"});
  INFO(resumed.errors);
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.output, Catch::Contains("\nsoy.bean  "));
  const Ended refused =
      run(place, {"--output_dir", place.dir / "run", "--resume", "latest", "--background_class", "0"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.errors, Catch::Contains("--background_class: cannot change when a run is continued"));
}

TEST_CASE("Two replicas with class weights train as one process", "[apps][hsi]") {
  const HsiPlace place;
  const auto with = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), {"--global_batch_size", "8", "--background_class", "none"});
    const Ended ended = run(place, place.flags(name, more));
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return losses(place.dir / name);
  };
  const auto one = with("one", {"--class_weights"}), two = with("two", {"--class_weights", "--parallel", "2"});
  REQUIRE(one.size() == two.size());
  for (size_t i = 0; i < one.size(); ++i) {
    if (one[i].split != "test") CHECK(two[i].loss == Approx(one[i].loss).epsilon(2e-3).margin(1e-4));
  }
  CHECK(with("plain", {})[0].loss != one[0].loss);
}

TEST_CASE("Both feed modes and any number of workers train the same weights", "[apps][hsi]") {
  const HsiPlace place;
  const std::vector<std::string> base = {"--save_every", "100", "--no-write_maps"};
  const auto with = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), base.begin(), base.end());
    const Ended ended = run(place, place.flags(name, more));
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    const fs::path folder = place.dir / name + "/checkpoints";
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.is_directory()) return read_text((entry.path() / "model.safetensors").string());
    }
    return std::string();
  };
  const std::string expected = with("device", {"--feed", "device"});
  REQUIRE(!expected.empty());
  CHECK(with("loader0", {"--feed", "loader", "--num_workers", "0"}) == expected);
  CHECK(with("loader3", {"--feed", "loader", "--num_workers", "3"}) == expected);
  CHECK(with("plain", {"--feed", "device", "--no-augment"}) != expected);
}

TEST_CASE("Early stopping and the best step never use a test pixel", "[apps][hsi]") {
  // Training does not change with other test pixels but the same training and validation pixels.
  const HsiPlace place;
  REQUIRE(run(place, place.flags("a", {"--early_stopping", "2", "--epochs", "6"})).code == 0);
  auto split = nlohmann::json::parse(read_text(place.dir / "a" + "/split.json"));
  REQUIRE(split.at("test").size() > 20);
  split["test"].erase(split["test"].begin(), split["test"].begin() + 10);
  std::ofstream(place.dir / "other.json") << split.dump();
  const Ended ended =
      run(place, place.flags("b", {"--early_stopping", "2", "--epochs", "6", "--split", place.dir / "other.json"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  auto a = losses(place.dir / "a"), b = losses(place.dir / "b");
  std::erase_if(a, [](const Loss& loss) { return loss.split == "test"; });
  std::erase_if(b, [](const Loss& loss) { return loss.split == "test"; });
  CHECK(a == b);
}

TEST_CASE("config.yaml of a run of trainkit-hsi reproduces the run", "[apps][hsi]") {
  const HsiPlace place;
  REQUIRE(run(place, place.flags("run")).code == 0);
  const Ended again = run(place, {"--config", place.dir / "run" + "/config.yaml", "--output_dir", place.dir / "again"});
  INFO(again.errors);
  REQUIRE(again.code == 0);
  CHECK(losses(place.dir / "run") == losses(place.dir / "again"));
}

TEST_CASE("A dry run of trainkit-hsi checks everything and writes nothing", "[apps][hsi]") {
  const HsiPlace place;
  const Ended ended = run(place, place.flags("run", {"--dry_run"}));
  INFO(ended.errors);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.output, Catch::Contains("parameters") && Catch::Contains("leak"));
  CHECK(!fs::exists(place.dir / "run"));
  const Ended json = run(place, place.flags("run", {"--dry_run", "--json"}));
  CHECK(nlohmann::json::parse(json.output).contains("scene"));
}

TEST_CASE("Every model, split and PCA setting trains", "[apps][hsi]") {
  const HsiPlace place;
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--model", "mlp", "--patch_size", "1"},
                                               {"--model", "cnn3d", "--patch_size", "7"},
                                               {"--model", "hybridsn", "--patch_size", "9", "--pca", "13"},
                                               {"--model", "ssrn"},
                                               {"--split", "disjoint", "--block_size", "6"},
                                               {"--train_count", "20"},
                                               {"--validation_share", "0"},
                                               {"--precision", "bf16"}}) {
    std::vector<std::string> given = more;
    given.insert(given.end(), {"--max_steps", "3", "--overwrite"});
    std::vector<std::string> flags = place.flags("run", given);
    if (more[0] == "--train_count") {
      const auto ratio = std::find(flags.begin(), flags.end(), "--train_ratio");
      flags.erase(ratio, ratio + 2);
    }
    const Ended ended = run(place, flags);
    INFO(more[0] << " " << more[1] << "\n" << ended.errors);
    CHECK(ended.code == 0);
  }
}

TEST_CASE("Errors of trainkit-hsi have the exit code of their class and one line", "[apps][hsi]") {
  const HsiPlace place;
  std::ofstream(place.dir / "bad.yaml") << "patchsize: 8\n";
  std::ofstream(place.dir / "cut.mat") << read_text(place.dir / "demo.mat").substr(0, 900);
  std::ofstream(place.dir / "split.json") << "{}";
  std::ofstream(place.dir / "names.txt") << "a\na\nb\n";
  REQUIRE(run(place, place.flags("taken", {"--max_steps", "2", "--save_every", "2"})).code == 0);
  struct Case {
    int code;
    const char* text;
    std::vector<std::string> flags;
  };
  const std::string demo = place.dir / "demo.mat", truth = place.dir / "demo_gt.mat";
  const std::vector<Case> cases = {
      {2, "error[cli.unknown] --patchsize", {"--patchsize", "8"}},
      {2, "--patch_size", {"--patch_size", "8"}},
      {2, "--patch_size", {"--model", "ssrn", "--patch_size", "1"}},
      {2, "--train_ratio", {"--train_ratio", "1.1"}},
      {2, "--train_ratio", {"--train_ratio", "0"}},
      {2, "--train_count", {"--train_count", "5", "--train_ratio", "0.1"}},
      {2, "--model", {"--model", "resnet"}},
      {2, "--feed", {"--feed", "disk"}},
      {2, "--repeats", {"--repeats", "0"}},
      {2, "--background_class", {"--cube", demo, "--gt", truth, "--background_class", "nil"}},
      {2, "--background_class", {"--cube", demo, "--gt", truth, "--background_class", "-1"}},
      {2, "--background_class", place.flags("b", {"--background_class", "17"})},
      {2, "--class_names", place.flags("n", {"--class_names", "a", "b"})},
      {2, "--class_names", place.flags("n", {"--class_names", "a", "b", "a"})},
      {2, "--class_weights", place.flags("n", {"--class_weights=maybe"})},
      {4, "names.txt:2: duplicate name", place.flags("n", {"--class_names", place.dir / "names.txt"})},
      {4, "data.class_names", place.flags("n", {"--class_names", place.dir / "absent.txt"})},
      {2, "--pca", {"--cube", demo, "--gt", truth, "--pca", "17", "--output_dir", place.dir / "p"}},
      {2, "--batch_size", {"--batch_size", "0"}},
      {2, "--resume", {"--repeats", "2", "--resume", place.dir / "taken"}},
      {2, "--overwrite", place.flags("taken")},
      {3, "bad.yaml:1:1", {"--config", place.dir / "bad.yaml"}},
      {4, "cut.mat", {"--cube", place.dir / "cut.mat", "--gt", truth, "--output_dir", place.dir / "c"}},
      {4, "missing.mat", {"--cube", place.dir / "missing.mat", "--gt", truth, "--output_dir", place.dir / "d"}},
      {4, "no batch to train on (got '", place.flags("t", {"--batch_size", "100000", "--drop_last"})},
      {4, "split.json", place.flags("s", {"--split", place.dir / "split.json"})},
      {5, "error[", place.flags("e", {"--resume", "latest"})},
      {5, "demo.mat", place.flags("f", {"--init_from", demo})},
      {6, "error[", {"--cube", demo, "--gt", truth, "--output_dir", demo}},
      {4, "missing.mat", place.flags("r", {"--repeats", "2", "--cube", place.dir / "missing.mat"})},
      {2, "--output_dir: contains checkpoints", place.flags("taken", {"--repeats", "2"})},
      // A run that cannot start leaves the earlier one that it would replace.
      {4, "no batch", place.flags("taken", {"--overwrite", "--batch_size", "100000", "--drop_last"})},
      {4, "missing.mat", place.flags("taken", {"--overwrite", "--cube", place.dir / "missing.mat"})},
      {4, "missing.mat", place.flags("taken", {"--overwrite", "--repeats", "2", "--cube", place.dir / "missing.mat"})},
  };
  const std::string taken = folder_contents(place.dir / "taken");
  for (const Case& bad : cases) {
    const Ended ended = run(place, bad.flags);
    INFO(bad.text << "\n" << ended.errors);
    CHECK(ended.code == bad.code);
    for (const char* name : {"a", "b", "c", "d", "e", "f", "n", "p", "r", "s", "t"}) {
      CHECK(has_only_error(place.dir / name));
    }
    CHECK(ended.errors.starts_with("trainkit: error["));
    CHECK(ended.errors.find(bad.text) != std::string::npos);
    CHECK(ended.errors.substr(0, ended.errors.find('\n')).size() <= 400);
    CHECK(std::count(ended.errors.begin(), ended.errors.end(), '\n') <= 2);
  }
  CHECK(folder_contents(place.dir / "taken") == taken);
}

TEST_CASE("SIGTERM stops trainkit-hsi with a checkpoint and exit code 143; it resumes with its split", "[apps][hsi]") {
  const HsiPlace place;
  check_stop("trainkit-hsi", place.flags("run", {"--epochs", "100000", "--save_every", "1000000"}), place.dir,
             "split.json", {"--validation_share", "0.5"});
}

TEST_CASE("The program can read the demo scene that it writes", "[apps][hsi]") {
  const HsiPlace place;
  const Ended made = run(place, {"--make_demo_data", place.dir / "demo"});
  INFO(made.errors);
  REQUIRE(made.code == 0);
  const Ended planned = run(place, {"--cube", place.dir / "demo/demo.mat", "--gt", place.dir / "demo/demo_gt.mat",
                                    "--output_dir", place.dir / "run", "--dry_run"});
  INFO(planned.errors);
  CHECK(planned.code == 0);
  CHECK_THAT(planned.output, Catch::Contains("145 x 145 pixels, 200 bands, 16 classes"));
}
