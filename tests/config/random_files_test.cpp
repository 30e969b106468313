// Configuration files with random values: written and read again, the same in YAML and in JSON, and damaged.
#include <bit>
#include <cmath>
#include <random>
#include <tuple>

#include "config_test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Number of rounds of a random test: `few`, or `many` with ./dev test --full.
int rounds(int few, int many) { return is_full() ? many : few; }

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
