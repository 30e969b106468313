// A configuration file, as YAML and as JSON; accepted settings are printed as a file that gives the same settings.
#include "trainkit/config/config.h"

#include <filesystem>

#include "config/raw_value.h"
#include "target.h"

namespace trainkit::fuzz::config {

namespace {

struct Options {
  bool flag = false;
  int64_t number = 1;
  uint64_t seed = 0;
  double lr = 1e-3;
  std::string text, data_dir;
  Seconds timeout{60};
  IntOrAuto workers;
  std::vector<int> ids;
  std::vector<std::string> names;
  std::optional<double> clip;
  ConfigParser parser{{.name = "fuzz", .version = "1"}};

  Options() {
    parser.add("flag", &flag);
    parser.add("number", &number, {.aliases = {"count"}, .min = -5, .max = 1e15});
    parser.add("seed", &seed);
    parser.add("lr", &lr, {.above = 0});
    parser.add("text", &text);
    parser.add("data_dir", &data_dir, {.path = PathKind::kInput});
    parser.add("timeout", &timeout, {.min = 0});
    parser.add("workers", &workers, {.min = 0});
    parser.add("ids", &ids, {.unique_items = true});
    parser.add("names", &names);
    parser.add("clip", &clip, {.min = 0});
  }
};

void check(const std::string& path) {
  if (const auto entries = detail::read_config_file(path); !entries.ok())
    return require_named(entries.status(), {"config."});
  Options options;
  const auto request = options.parser.parse({"--config", path});
  if (!request.ok()) return require_named(request.status(), {"config."});
  const std::string yaml = options.parser.to_yaml();
  Options again;
  const std::string copy = write_bytes("again.yaml", yaml);
  const auto other = again.parser.parse({"--config", copy});
  require(other.ok(), "printed settings can be read: " + other.status().ToString() + "\n" + yaml);
  require(again.parser.settings() == options.parser.settings(), "and gives the same settings: " + yaml);
  const auto place = [](const std::filesystem::path& path) {
    std::error_code failed;
    const auto found = std::filesystem::weakly_canonical(path, failed);
    return failed ? path.lexically_normal() : found;
  };
  require(place(again.data_dir) == place(options.data_dir), "and the same paths");
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      "# a run\nflag: true\nnumber: 12\nlr: 1e-4\ntext: \"a\\tb\"\ntimeout: 1m30s\nids: [0, 1]\nnames:\n- a\n- 'b c'\n",
      R"({"flag": false, "seed": 18446744073709551615, "workers": "auto", "clip": 0.5, "names": ["x", "\u00e4"]})",
      "data_dir: ../data/x\nclip: null\nworkers: 4\ntext: |\n  two\n  lines\ncount: -3\n", "{}\n"};
}

int test_one_input(const uint8_t* data, size_t size) {
  check(write_bytes("input.yaml", as_text(data, size)));
  check(write_bytes("input.json", as_text(data, size)));
  return 0;
}

const Registered target("config", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::config
