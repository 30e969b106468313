// Sources of a value, presets, late defaults, refusals, and writing and reading configuration files.
#include "trainkit/config/config.h"

#include <c10/util/Exception.h>

#include <random>
#include <regex>

#include "config_test_util.h"
#include "trainkit/core/fs.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Number of rounds of a random test: `few`, or `many` with ./dev test --full.
int rounds(int few, int many) { return environment("TRAINKIT_TEST_FULL").empty() ? few : many; }

enum class Mode { kFast, kExact };

/// One option of every type.
struct AllTypes {
  bool flag = false;
  int small = 1;
  int64_t large = 2;
  uint64_t seed = 3;
  double rate = 0.5;
  std::string word = {}, choice = "a", path = {};
  Seconds time{1};
  IntOrAuto workers = {};
  std::vector<int> ids = {};
  std::vector<int64_t> sizes = {};
  std::vector<double> rates = {};
  std::vector<std::string> words = {};
  std::optional<bool> maybe_flag = {};
  std::optional<int> maybe_small = {};
  std::optional<int64_t> maybe_large = {};
  std::optional<double> maybe_rate = {};
  std::optional<Seconds> maybe_time = {};
  Mode mode = Mode::kFast;
  bool operator==(const AllTypes&) const = default;

  void add_to(ConfigParser& parser) {
    parser.add("flag", &flag);
    parser.add("small", &small);
    parser.add("large", &large);
    parser.add("seed", &seed);
    parser.add("rate", &rate);
    parser.add("word", &word);
    parser.add("choice", &choice, {.choices = {"a", "b"}});
    parser.add("path", &path, {.path = PathKind::kInput, .path_words = {"latest"}});
    parser.add("time", &time);
    parser.add("workers", &workers);
    parser.add("ids", &ids);
    parser.add("sizes", &sizes);
    parser.add("rates", &rates);
    parser.add("words", &words);
    parser.add("maybe_flag", &maybe_flag);
    parser.add("maybe_small", &maybe_small);
    parser.add("maybe_large", &maybe_large);
    parser.add("maybe_rate", &maybe_rate);
    parser.add("maybe_time", &maybe_time);
    parser.add("mode", &mode, {{"fast", Mode::kFast}, {"exact", Mode::kExact}});
  }
};

/// Draws values that are hard to write and read back.
class Draw {
 public:
  explicit Draw(uint64_t seed) : generator_(seed) {}
  uint64_t bits() { return generator_(); }
  bool coin() { return bits() % 2 == 0; }
  double number() {
    double value = std::bit_cast<double>(bits());
    return std::isfinite(value) ? value : 0.1;
  }
  std::string text() {
    static const std::vector<std::string> kPieces = {
        "true", "null", "~",    "010",  "1e3", " ",    "\t", "\n", "\"", "'", ":", ": ", "#",      " #",    "-",
        "- ",   "[",    "{",    "\\",   "%",   "@",    "`",  "!",  "&",  "*", "?", "|",  ">",      "...",   "\u00e9",
        "日本", "🙂", "\x01", "\x7f", "\r",  "\x1b", "a",  "B",  "0",  "_", ",", "=",  "\u2028", "\ufeff"};
    std::string text;
    for (uint64_t i = bits() % 6 + 1; i > 0; --i) text += kPieces[bits() % kPieces.size()];
    return text;
  }

  AllTypes all() {
    AllTypes t;
    t.flag = coin();
    t.small = static_cast<int>(bits());
    t.large = static_cast<int64_t>(bits());
    t.seed = bits();
    t.rate = number();
    t.word = coin() ? text() : "";
    t.choice = coin() ? "a" : "b";
    t.path = coin() ? std::string("/").append(text()).append("/ä b.txt") : coin() ? "latest" : "";
    t.time = Seconds(static_cast<double>(bits() % 1000000) / 1000);
    if (coin()) t.workers.value = static_cast<int64_t>(bits());
    for (uint64_t i = bits() % 4; i > 0; --i) t.ids.push_back(static_cast<int>(bits()));
    for (uint64_t i = bits() % 4; i > 0; --i) t.sizes.push_back(static_cast<int64_t>(bits()));
    for (uint64_t i = bits() % 4; i > 0; --i) t.rates.push_back(number());
    for (uint64_t i = bits() % 4; i > 0; --i) t.words.push_back(text());
    if (coin()) t.maybe_flag = coin();
    if (coin()) t.maybe_small = static_cast<int>(bits());
    if (coin()) t.maybe_large = static_cast<int64_t>(bits());
    if (coin()) t.maybe_rate = number();
    if (coin()) t.maybe_time = Seconds(number() < 0 ? 0.25 : 3600);
    t.mode = coin() ? Mode::kFast : Mode::kExact;
    return t;
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace

TEST_CASE("A value comes from the source of highest precedence (flags, file, preset, defaults) and reports it",
          "[config][config]") {
  const TempDir folder;
  const std::string file = write(folder / "run.yaml", "preset: small_gpu\nhidden_dim: 64\nlr: 1e-2\n");
  Program program;
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
  Program program;
  REQUIRE(program.start({"--config", write(folder / "run.yaml", "preset: small_gpu\n"), "--preset=large_gpu"}).ok());
  CHECK(program.hidden_dim == 512);
}

TEST_CASE("An overridden value is still checked", "[config][config]") {
  const TempDir folder;
  Program program;
  const std::string file = write(folder / "run.yaml", "lr: fast\n");
  check_error(program.start({"--config", file, "--lr", "0.5"}), ExitCode::kConfig, "config.type");
}

TEST_CASE("print_config is enabled by its flag only", "[config][config]") {
  Program program;
  CHECK(program.parser.parse({"--print-config", "--epochs", "3"}).value() == Request::kPrintConfig);
  Program other;
  CHECK(other.parser.parse({"--epochs", "3"}).value() == Request::kRun);
  CHECK(other.parser.text(Request::kRun).empty());
}

TEST_CASE("The resolved configuration gives the same values when it is read again", "[config][config]") {
  const TempDir folder;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    AllTypes drawn = Draw(seed).all(), read;
    // Bound with their defaults, as a program does, so that optional values are known to be optional.
    AllTypes written;
    ConfigParser writer({.name = "train"}), reader({.name = "train"});
    written.add_to(writer);
    read.add_to(reader);
    written = drawn;
    const std::string text = writer.to_yaml();
    INFO(seed << "\n" << text);
    const auto request = reader.parse({"--config", write(folder / "config.yaml", text)});
    INFO(error_text(request.status()));
    REQUIRE(request.ok());
    REQUIRE(read == drawn);
    REQUIRE(reader.is_given("mode"));
  }
}

TEST_CASE("A trainer's resolved configuration reproduces the run", "[config][config]") {
  const TempDir folder;
  Program first;
  REQUIRE(first
              .start({"--preset", "small_gpu", "--lr", "3e-5", "--data_dir", "data", "--resume", "latest", "--max_time",
                      "2h", "--precision", "bf16", "--n_heads", "4", "--use_wandb", "--vocab", "v o/c: #ab.json"})
              .ok());
  const std::string text = first.parser.to_yaml();
  CHECK_THAT(text, !Catch::Contains("\nconfig:") && !Catch::Contains("\npreset:") && !Catch::Contains("print_config"));
  Program second;
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
  Program program;
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
  Program flag, file;
  flag.parser.parse({"--data_dir", path}).value();
  CHECK_THAT(flag.parser.to_yaml(), Catch::Contains("data_dir: " + path));
  file.parser.parse({"--config", write(folder / "here/run.yaml", "data_dir: link/../x.csv\n")}).value();
  CHECK(file.run.data_dir == path);
  CHECK_THAT(file.parser.to_yaml(), Catch::Contains("data_dir: " + path));
}

TEST_CASE("An unsupported setting is refused unless it has the default value", "[config][config]") {
  const TempDir folder;
  const auto start = [&](std::vector<std::string> flags) {
    Program program;
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
  Program program;
  program.parser.refuse("monitor", "comes with a later release");
  const std::string help = std::regex_replace(program.parser.help(), std::regex("\\s+"), " ");  // ignores line breaks
  CHECK_THAT(help, Catch::Contains("not supported: comes with a later release"));
}

TEST_CASE("YAML and JSON with the same settings have the same result", "[config][config]") {
  const std::vector<std::string> keys = {"flag", "small",   "large",   "seed", "rate",  "word",       "choice",
                                         "path", "time",    "workers", "ids",  "words", "maybe_rate", "maybe_flag",
                                         "mode", "no_flag", "smal",    "help", "small"};
  const std::vector<std::string> values = {"true",
                                           "false",
                                           "null",
                                           "0",
                                           "1",
                                           "-1",
                                           "8",
                                           "3.0",
                                           "1e3",
                                           "0.25",
                                           "-0",
                                           "99999999999999999999",
                                           "1e999",
                                           "1e-999",
                                           "\"8\"",
                                           "\"auto\"",
                                           "\"a\"",
                                           "\"A\"",
                                           "\"b\"",
                                           "\"\"",
                                           "\"true\"",
                                           "\"null\"",
                                           "\"fast\"",
                                           "\"1h30m\"",
                                           "\"latest\"",
                                           "\"../x\"",
                                           "\"\\u0000\"",
                                           "\"\\u00e9\\n\"",
                                           "[]",
                                           "[0]",
                                           "[0, 1, 1]",
                                           "[\"x\", \"y\"]",
                                           "[[0]]",
                                           "[0, \"x\"]",
                                           "[null]",
                                           "{}",
                                           "{\"small\": 1}"};
  const TempDir folder;
  std::mt19937_64 draw(7);
  int accepted = 0;
  for (int round = 0; round < rounds(1000, 4000); ++round) {
    std::string text = "{";
    for (uint64_t i = 0, count = draw() % 4 + 1; i < count; ++i) {
      text.append(i ? ",\n  \"" : "\"").append(keys[draw() % keys.size()]).append("\": ");
      text.append(values[draw() % values.size()]);
    }
    text += "}\n";
    const auto verdict = [&](const std::string& name, AllTypes& into) {
      ConfigParser parser({.name = "train"});
      into.add_to(parser);
      return parser.parse({"--config", write(folder / name, text)}).status();
    };
    AllTypes from_yaml, from_json;
    const absl::Status yaml = verdict("run.yaml", from_yaml), json = verdict("run.json", from_json);
    INFO(text << error_text(yaml) << error_text(json));
    REQUIRE(yaml.ok() == json.ok());
    if (yaml.ok()) {
      REQUIRE(from_yaml == from_json);
      ++accepted;
      continue;
    }
    // Equal except for the file name.
    const Error a = error_of(yaml).value(), b = error_of(json).value();
    REQUIRE(a.where.substr(a.where.rfind("run.yaml") + 8) == b.where.substr(b.where.rfind("run.json") + 8));
    REQUIRE(std::tie(a.id, a.field, a.problem, a.got, a.expected, a.hint) ==
            std::tie(b.id, b.field, b.problem, b.got, b.expected, b.hint));
  }
  CHECK(accepted > 25);
}

TEST_CASE("Files with random damage are read or refused, and never crash", "[config][config]") {
  const TempDir folder;
  AllTypes values = Draw(3).all();
  ConfigParser writer({.name = "train"});
  values.add_to(writer);
  const std::string yaml = writer.to_yaml();
  const std::string json =
      "{\"flag\": true, \"rate\": [1e3, -0.5], \"word\": \"a\\u00e9\\n\", \"ids\": [1, 2], \"x\": {\"y\": null}}\n";
  std::mt19937_64 draw(11);
  for (int round = 0; round < rounds(2000, 100000); ++round) {
    const bool is_yaml = round % 2 == 0;
    std::string text = is_yaml ? yaml : json;
    for (uint64_t edits = draw() % 4 + 1; edits > 0; --edits) {
      const size_t at = draw() % text.size();
      switch (draw() % 4) {
        case 0:
          text[at] = static_cast<char>(draw());
          break;
        case 1:
          text.erase(at, draw() % 8);
          break;
        case 2:
          text.insert(at, 1, "[]{}:,#&*!|>'\"%@`?- \n\t\\<"[draw() % 25]);
          break;
        default:
          text.insert(at, text.substr(draw() % text.size(), draw() % 20));
      }
      if (text.empty()) text.push_back('x');
    }
    AllTypes read;
    ConfigParser parser({.name = "train"});
    read.add_to(parser);
    const auto request = parser.parse({"--config", write(folder / (is_yaml ? "run.yaml" : "run.json"), text)});
    if (request.ok()) continue;
    INFO(text);
    REQUIRE(exit_code(request.status()) == ExitCode::kConfig);
    REQUIRE(error_line(request.status()).size() <= 400);
  }
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
