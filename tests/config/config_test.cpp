// Sources of a value, presets, late defaults, refusals, and writing and reading configuration files.
#include "trainkit/config/config.h"

#include <c10/util/Exception.h>

#include <regex>

#include "config_test_util.h"
#include "trainkit/core/fs.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("A value comes from the source of highest precedence (flags, file, preset, defaults) and reports it",
          "[config][config]") {
  const TempDir folder;
  const std::string file = write(folder / "run.yaml", "preset: small_gpu\nhidden_dim: 64\nlr: 1e-2\n");
  TrainerFlags program;
  const absl::Status status = program.start({"--config", file, "--lr", "0.5"});
  INFO(error_text(status));
  REQUIRE(status.ok());
  program.parser.set_defaults({{"n_heads", "4"}, {"batch_size", "99"}, {"lr", "9"}, {"gpu_ids", "1,2"}}, "cpu");

  const auto& parser = program.parser;
  CHECK(program.run.lr == 0.5);
  CHECK(parser.source("lr") == "--lr");
  CHECK(program.hidden_dim == 64);
  CHECK(parser.source("hidden_dim") == file + ":2:13");
  CHECK(program.run.batch_size == IntOrAuto{8});
  CHECK(parser.source("batch-size") == "preset small_gpu");
  CHECK(program.n_heads == 4);
  CHECK(parser.source("n_heads") == "default (cpu)");
  CHECK(program.run.gpu_ids == std::vector<int>{1, 2});
  CHECK(program.run.epochs == 100);
  CHECK(parser.source("epochs") == "default");
  CHECK_FALSE(parser.is_given("n_heads"));
  CHECK(parser.is_given("batch_size"));

  const std::string text = parser.text(Request::kPrintConfig);
  for (const char* line : {"lr: 0.5 ", "# --lr\n", "hidden_dim: 64 ", "# preset small_gpu\n", "# default (cpu)\n"}) {
    CHECK_THAT(text, Catch::Contains(line));
  }
  CHECK_THAT(parser.help(), Catch::Contains("[default: 4 (cpu)]"));
}

TEST_CASE("A preset given by flag takes precedence over the file's", "[config][config]") {
  const TempDir folder;
  TrainerFlags program;
  REQUIRE(program.start({"--config", write(folder / "run.yaml", "preset: small_gpu\n"), "--preset=large_gpu"}).ok());
  CHECK(program.hidden_dim == 512);
}

TEST_CASE("An overridden value is still checked", "[config][config]") {
  const TempDir folder;
  TrainerFlags program;
  const std::string file = write(folder / "run.yaml", "lr: fast\n");
  check_error(program.start({"--config", file, "--lr", "0.5"}), ExitCode::kConfig, "config.type");
}

TEST_CASE("print_config is enabled by its flag only", "[config][config]") {
  TrainerFlags program;
  CHECK(program.parser.parse({"--print-config", "--epochs", "3"}).value() == Request::kPrintConfig);
  TrainerFlags other;
  CHECK(other.parser.parse({"--epochs", "3"}).value() == Request::kRun);
  CHECK(other.parser.text(Request::kRun).empty());
}

TEST_CASE("A trainer's resolved configuration reproduces the run", "[config][config]") {
  const TempDir folder;
  TrainerFlags first;
  REQUIRE(first
              .start({"--preset", "small_gpu", "--lr", "3e-5", "--data_dir", "data", "--resume", "latest", "--max_time",
                      "2h", "--precision", "bf16", "--n_heads", "4", "--use_wandb", "--vocab", "v o/c: #ab.json"})
              .ok());
  const std::string text = first.parser.to_yaml();
  CHECK_THAT(text, !Catch::Contains("\nconfig:") && !Catch::Contains("\npreset:") && !Catch::Contains("print_config"));
  TrainerFlags second;
  const absl::Status status = second.start({"--config", write(folder / "config.yaml", text)});
  INFO(text << error_text(status));
  REQUIRE(second.parser.is_given("lr"));
  // The same values in the same order; only the comments on their sources differ.
  const auto values = [](std::string text) {
    std::string kept;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) kept.append(line, 0, line.rfind(" # ")).append("\n");
    return kept;
  };
  CHECK(values(second.parser.to_yaml()) == values(text));
  CHECK(second.run.data_dir == std::filesystem::current_path() / "data");
  CHECK(second.run.resume == "latest");
  CHECK(second.vocab == std::filesystem::current_path() / "v o/c: #ab.json");
}

TEST_CASE("A relative path in a file starts at the file's folder, one in a flag at the working directory",
          "[config][config]") {
  const TempDir folder;
  std::filesystem::create_directories(folder / "configs");
  const std::string file = write(folder / "configs/run.yaml",
                                 "data_dir: ../data\ninput: /abs/text.txt\nresume: latest\noutput_dir: out/x\n");
  TrainerFlags program;
  program.parser.parse({"--config", file, "--vocab", "v.json"}).value();
  CHECK(program.run.data_dir == folder / "data");
  CHECK(program.input == "/abs/text.txt");
  CHECK(program.run.resume == "latest");
  CHECK(program.run.output_dir == folder / "configs/out/x");
  CHECK(program.vocab == "v.json");
}

TEST_CASE("A list of paths keeps commas, takes a single path in a file, and starts at the file's folder",
          "[config][config]") {
  const TempDir folder;
  const auto parse = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> paths;
    ConfigParser parser({.name = "paths"});
    parser.add("input", &paths, {.path = PathKind::kInput});
    CHECK(parser.parse(arguments).ok());
    return paths;
  };
  using Paths = std::vector<std::string>;
  CHECK(parse({"--input", "a,b.txt", "c.txt:0.3"}) == Paths{"a,b.txt", "c.txt:0.3"});
  CHECK(parse({"--input=a,b.txt"}) == Paths{"a,b.txt"});
  CHECK(parse({"--config", write(folder / "one.yaml", "input: a.txt\n")}) == Paths{folder / "a.txt"});
  CHECK(parse({"--config", write(folder / "one.json", R"({"input": "a.txt:0.5"})")}) == Paths{folder / "a.txt:0.5"});
  CHECK(parse({"--config", write(folder / "two.yaml", "input: [a.txt, /b.txt]\n")}) ==
        Paths{folder / "a.txt", "/b.txt"});
}

TEST_CASE("A path through a link is used and printed as the file that it names", "[config][config]") {
  const TempDir folder;
  std::filesystem::create_directories(folder / "there/data");
  std::filesystem::create_directories(folder / "here");
  std::filesystem::create_directory_symlink(folder / "there/data", folder / "here/link");
  const std::string path = folder / "here/link/../x.csv";  // there/x.csv, which differs from the text of the path
  TrainerFlags flag, file;
  flag.parser.parse({"--data_dir", path}).value();
  CHECK_THAT(flag.parser.to_yaml(), Catch::Contains("data_dir: " + path));
  file.parser.parse({"--config", write(folder / "here/run.yaml", "data_dir: link/../x.csv\n")}).value();
  CHECK(file.run.data_dir == path);
  CHECK_THAT(file.parser.to_yaml(), Catch::Contains("data_dir: " + path));
}

TEST_CASE("An unsupported setting is refused unless it has the default value", "[config][config]") {
  const TempDir folder;
  const auto start = [&](std::vector<std::string> flags) {
    TrainerFlags program;
    program.parser.refuse("monitor", "comes with a later release");
    program.parser.refuse("init_from", "comes with a later release");
    return program.start(flags);
  };
  CHECK(start({}).ok());
  CHECK(start({"--no-monitor"}).ok());
  CHECK(start({"--config", write(folder / "same.yaml", "monitor: false\ninit_from: null\n")}).ok());
  check_error(start({"--monitor"}), ExitCode::kUsage, "cli.unsupported");
  check_error(start({"--init_from", "w.pt"}), ExitCode::kUsage, "cli.unsupported");
  check_error(start({"--config", write(folder / "other.yaml", "monitor: true\n")}), ExitCode::kConfig,
              "config.unsupported");
  TrainerFlags program;
  program.parser.refuse("monitor", "comes with a later release");
  const std::string help = std::regex_replace(program.parser.help(), std::regex("\\s+"), " ");  // ignores line breaks
  CHECK_THAT(help, Catch::Contains("not supported: comes with a later release"));
}

TEST_CASE("Programming errors in a program's options throw", "[config][config]") {
  ConfigParser parser({.name = "train"});
  int value = 1, other = 2;
  parser.add("value", &value, {.aliases = {"val"}, .min = 1});
  CHECK_THROWS_AS(parser.add("value", &other), c10::Error);
  CHECK_THROWS_AS(parser.add("val", &other), c10::Error);
  CHECK_THROWS_AS(parser.add("help", &other), c10::Error);
  CHECK_THROWS_AS(parser.add("no_value", &other), c10::Error);
  CHECK_THROWS_AS(parser.add("Value", &other), c10::Error);
  CHECK_THROWS_AS(parser.add("", &other), c10::Error);
  CHECK_THROWS_AS(parser.add_preset("p", {{"vlaue", "3"}}), c10::Error);
  CHECK_THROWS_AS(parser.add_preset("p", {{"value", "0"}}), c10::Error);
  CHECK_THROWS_AS(parser.set_defaults({{"value", "x"}}, "cpu"), c10::Error);
  CHECK_THROWS_AS(parser.refuse("vlaue", "why"), c10::Error);
  CHECK_THROWS_AS(parser.source("vlaue"), c10::Error);
  CHECK(parser.parse(std::vector<std::string>{}).ok());
  CHECK_THROWS_AS(parser.parse(std::vector<std::string>{}), c10::Error);
  CHECK_THROWS_AS(parser.add("late", &other), c10::Error);
}

TEST_CASE("A continued run keeps its own settings, lists changes and refuses fixed ones", "[config]") {
  const TempDir dir;
  const std::string run_file = dir / "config.yaml";
  struct Program {
    int64_t width = 1, steps = 2;
    double lr = 0.5;
    std::string out = "here", resume = {};
    ConfigParser parser{{.name = "p"}};
    explicit Program(std::string run_file) {
      parser.add("width", &width);
      parser.add("steps", &steps);
      parser.add("lr", &lr);
      parser.add("out", &out);
      parser.add("resume", &resume);
      parser.add_preset("wide", {{"width", "9"}, {"steps", "9"}});
      parser.fix({"width"});
      parser.set_run_file([this, run_file]() -> absl::StatusOr<std::string> { return resume.empty() ? "" : run_file; },
                          {"out", "resume"});
    }
    std::string parse(const std::vector<std::string>& flags) {
      const auto request = parser.parse(flags);
      return request.ok() ? "" : error_of(request.status())->id;
    }
  };
  {
    Program first(run_file);
    REQUIRE(first.parse({"--preset", "wide", "--steps", "3", "--out", "there"}).empty());
    REQUIRE(write_file_atomically(Fs::posix(), run_file, first.parser.to_yaml()) == absl::OkStatus());
  }
  {
    Program fresh(run_file);
    REQUIRE(fresh.parse({"--lr", "0.1"}).empty());
    CHECK((fresh.width == 1 && fresh.steps == 2 && fresh.parser.changes().empty()));
  }
  {
    Program same(run_file);
    REQUIRE(same.parse({"--resume", "latest"}).empty());
    CHECK((same.width == 9 && same.steps == 3 && same.lr == 0.5 && same.out == "here"));
    CHECK(same.parser.changes().empty());
    CHECK_FALSE(same.parser.is_given("steps"));
    CHECK_FALSE(same.parser.is_default("steps"));
    CHECK(same.parser.is_default("out"));
    CHECK(same.parser.source("steps").starts_with(run_file + ":"));
  }
  {
    Program changed(run_file);
    REQUIRE(changed.parse({"--resume", "latest", "--steps", "5", "--width", "9", "--out", "new"}).empty());
    CHECK((changed.width == 9 && changed.steps == 5 && changed.lr == 0.5 && changed.out == "new"));
    CHECK(changed.parser.changes() == std::vector<std::string>{"steps: 3 -> 5 (--steps)"});
    CHECK(changed.parser.is_changed("steps"));
    CHECK_FALSE(changed.parser.is_changed("lr"));
  }
  Program refused(run_file);
  CHECK(refused.parse({"--resume", "latest", "--width", "8"}) == "cli.fixed");
}

TEST_CASE("A default that a configuration file cannot hold is refused", "[config][config]") {
  ConfigParser parser({.name = "program", .version = "1"});
  const double infinity = std::numeric_limits<double>::infinity();
  double number = infinity;
  CHECK_THROWS_WITH(parser.add("number", &number), Catch::Contains("option number: the default must be finite"));
  number = std::nan("");
  CHECK_THROWS_AS(parser.add("number", &number), c10::ValueError);
  Seconds time(infinity);
  CHECK_THROWS_AS(parser.add("time", &time), c10::ValueError);
  std::optional<double> maybe = infinity;
  CHECK_THROWS_AS(parser.add("maybe", &maybe), c10::ValueError);
  std::vector<double> numbers = {1, infinity};
  CHECK_THROWS_AS(parser.add("numbers", &numbers), c10::ValueError);
  std::vector<std::string> words = {"", "a"};
  CHECK_THROWS_WITH(parser.add("words", &words), Catch::Contains("empty string"));
  words.clear();
  parser.add("words", &words);
}
