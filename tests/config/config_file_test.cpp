// Invalid and unusual configuration files, one per row, in YAML and in JSON.
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <random>

#include "config_test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Runs the program with a file that contains the text.
absl::Status start_with(const TempDir& folder, const std::string& name, const std::string& text,
                        std::vector<std::string> flags = {}) {
  TrainerFlags program;
  flags.insert(flags.begin(), {"--config", write(folder / name, text)});
  return program.start(flags);
}

struct BadFile {
  const char* what;
  std::string text;
  const char* id;
  /// ":line:column" after the file name; empty if the error concerns the whole file.
  std::string at;
  /// A part of the expected error message.
  const char* part;
};

const std::vector<BadFile> kBadYaml = {
    {"empty", "", "config.empty", "", "no settings in the file"},
    {"blank", " \n\t\n", "config.empty", "", "no settings"},
    {"comments only", "# lr: 1\n# nothing\n", "config.empty", "", "no settings"},
    {"a root list", "- lr: 1\n", "config.type", ":1:1", "the file is not a mapping"},
    {"a root scalar", "fast\n", "config.type", ":1:1", "the file is not a mapping"},
    {"a root null", "~\n", "config.empty", "", "no settings"},
    {"a tab in the indentation", "gpu_ids:\n\t- 1\n", "config.syntax", ":2:1", "a tab in the indentation"},
    {"an open bracket", "gpu_ids: [0, 1\nlr: 1\n", "config.syntax", ":", "not valid YAML"},
    {"an open quote", "tokenizer: \"char\nlr: 1\n", "config.syntax", ":", "not valid YAML"},
    {"an open quote before spaces", "data_dir: 'a\n  ", "config.syntax", ":", "not valid YAML"},
    {"an open quote at the end", "data_dir: \"a", "config.syntax", ":", "not valid YAML"},
    {"no colon", "lr 1\nseed: 3\n", "config.syntax", ":", "not valid YAML"},
    {"a key twice", "lr: 1\nseed: 3\nlr: 2\n", "config.duplicate", ":3:1", "lr: given twice"},
    {"a key twice, under two names", "epochs: 1\nmax-epochs: 2\n", "config.duplicate", ":2:1",
     "max-epochs: given twice"},
    {"a section", "train:\n  lr: 1\n  lr: 2\n", "config.key", ":1:1", "keys are flag names, without sections"},
    {"an unknown key", "seed: 1\nlearning_rat: 1\n", "config.key", ":2:1", "learning_rat: no such key"},
    {"a misspelt key", "hiden_dim: 8\n", "config.key", ":1:1", "did you mean hidden_dim?"},
    {"a negated key", "no_drop_last: true\n", "config.key", ":1:1", "did you mean drop_last?"},
    {"a key that only a flag may be", "config: other.yaml\n", "config.key", ":1:1", "can only be given as a flag"},
    {"--help as a key", "help: true\n", "config.key", ":1:1", "can only be given as a flag"},
    {"a mapping for a number", "lr:\n  value: 1\n", "config.type", ":2:3", "lr: a mapping, not a number"},
    {"a list for a number", "lr: [1, 2]\n", "config.type", ":1:5", "lr: a list, not a number"},
    {"a word for a number", "lr: fast\n", "config.type", ":1:5", "lr: a string, not a number (got 'fast'"},
    {"a word for an integer", "seed: eight\n", "config.type", ":1:7", "seed: a string, not an integer (got 'eight'"},
    {"a quoted integer", "seed: \"8\"\n", "config.type", ":1:7", "seed: a string, not an integer (got '8'"},
    {"3.0 for an integer", "seed: 3.0\n", "config.type", ":1:7", "seed: not an integer (got '3.0'"},
    {"1e3 for an integer", "seed: 1e3\n", "config.type", ":1:7", "seed: not an integer (got '1e3'"},
    {"an octal look", "seed: 010\n", "config.type", ":1:7", "seed: not an integer (got '010'"},
    {"an octal look for a number", "lr: 010\n", "config.type", ":1:5", "lr: not a number (got '010'"},
    {"a hexadecimal integer", "seed: 0x10\n", "config.type", ":1:7", "seed: not an integer (got '0x10'"},
    {"an octal integer", "seed: 0o10\n", "config.type", ":1:7", "seed: not an integer (got '0o10'"},
    {"an underscore", "seed: 1_000\n", "config.type", ":1:7", "seed: a string, not an integer (got '1_000'"},
    {"base 60", "seed: 1:30\n", "config.type", ":1:7", "seed: a string, not an integer"},
    {"yes for a boolean", "drop_last: yes\n", "config.type", ":1:12", "drop_last: a string, not a boolean (got 'yes'"},
    {"1 for a boolean", "drop_last: 1\n", "config.type", ":1:12", "drop_last: not a boolean (got '1'"},
    {"True for a boolean", "drop_last: True\n", "config.type", ":1:12", "expected true or false"},
    {"null for a required value", "seed: null\n", "config.type", ":1:7", "seed: null, not an integer"},
    {"no value for a required setting", "seed:\nlr: 1\n", "config.type", ":1:1", "seed: null, not an integer"},
    {"null for a word that has a default", "tokenizer: ~\n", "config.type", ":1:12", "tokenizer: null, not text"},
    {"a negative size", "hidden_dim: -4\n", "config.value", ":1:13", "hidden_dim: out of range (got '-4'"},
    {"a zero size", "hidden_dim: 0\n", "config.value", ":1:13", "expected 1..65536"},
    {"over 64 bits", "max_steps: 9223372036854775808\n", "config.value", ":1:12", "max_steps: out of range"},
    {"nan", "lr: .nan\n", "config.value", ":1:5", "lr: not a finite number (got '.nan'"},
    {"inf", "lr: .inf\n", "config.value", ":1:5", "lr: not a finite number (got '.inf'"},
    {"-inf", "lr: -.INF\n", "config.value", ":1:5", "lr: not a finite number"},
    {"an overflow", "lr: 1e999\n", "config.value", ":1:5", "lr: too large or too small for a double"},
    {"a bad choice", "precision: fp8\n", "config.value", ":1:12", "precision: not one of the choices (got 'fp8'"},
    {"a choice in another case", "precision: BF16\n", "config.value", ":1:12", "did you mean 'bf16'?"},
    {"a number for a word", "tokenizer: 8\n", "config.type", ":1:12", "tokenizer: a number, not text (got '8'"},
    {"a boolean for a path", "data_dir: true\n", "config.type", ":1:11", "put it in quotes"},
    {"a list that is too long",
     "gpu_ids: [" +
         [] {
           std::string items;
           for (int i = 0; i < 129; ++i) items += std::to_string(i) + ",";
           return items;
         }() +
         "]\n",
     "config.value", ":1:10", "gpu_ids: wrong number of elements (got '129', expected 1..128 elements)"},
    {"an empty list", "gpu_ids: []\n", "config.value", ":1:10", "gpu_ids: wrong number of elements (got '0'"},
    {"a scalar for a list", "gpu_ids: 0\n", "config.type", ":1:10", "gpu_ids: not a list (got '0'"},
    {"a bad element", "gpu_ids:\n  - 0\n  - one\n", "config.type", ":3:5",
     "gpu_ids: a string, not an integer (got 'one'"},
    {"a list in a list", "gpu_ids: [0, [1]]\n", "config.type", ":1:14", "gpu_ids: a list, not an integer"},
    {"an element twice", "gpu_ids: [0, 1, 0]\n", "config.value", ":1:17", "gpu_ids: duplicate element"},
    {"an empty path", "data_dir: \"\"\n", "config.value", ":1:11", "data_dir: empty"},
    {"a NUL in a path", "data_dir: \"a\\0b\"\n", "config.value", ":1:11", "data_dir: holds a NUL byte"},
    {"an anchor", "lr: &x 1\n", "config.syntax", ":1:", "anchors and aliases are not supported"},
    {"an unknown alias", "lr: *x\n", "config.syntax", ":1:", ""},
    {"a cyclic alias", "gpu_ids: &a [0, *a]\n", "config.syntax", ":1:", "anchors and aliases"},
    {"a cyclic merge", "a: &a\n  <<: *a\n", "config.syntax", ":", "anchors and aliases"},
    {"a merge key", "<<: {lr: 1}\n", "config.syntax", ":1:1", "merge keys are not supported"},
    {"a Python object", "lr: !!python/object:os.system ls\n", "config.syntax", ":1:", "tags are not supported"},
    {"a type tag", "seed: !!int \"3\"\n", "config.syntax", ":1:", "tags are not supported"},
    {"a second document", "lr: 1\n---\nlr: 2\n", "config.syntax", ":2:1", "a second document"},
    {"a key that is a list", "? [a, b]\n: 1\n", "config.syntax", ":1:", "a key is not a scalar"},
    {"UTF-16", std::string("\xff\xfel\0r\0:\0 \0001\0", 12), "config.encoding", ":1:1", "looks like UTF-16"},
    {"UTF-16 without its mark", std::string("l\0r\0:\0 \0001\0", 10), "config.encoding", ":1:1", "looks like UTF-16"},
    {"invalid UTF-8", "seed: 1\ndata_dir: a\xff\n", "config.encoding", ":2:12", "not valid UTF-8"},
    {"an overlong NUL", "data_dir: \xc0\x80\n", "config.encoding", ":1:11", "not valid UTF-8"},
    {"a surrogate", "data_dir: \xed\xa0\x80\n", "config.encoding", ":1:11", "not valid UTF-8"},
    {"a NUL byte", std::string("seed: 1\nlr: \0", 13), "config.encoding", ":2:5", "a control byte"},
    {"an escape byte", "data_dir: \x1b[31m\n", "config.encoding", ":1:11", "a control byte"},
    {"a lone carriage return", "seed: 1\rlr: 2\n", "config.encoding", ":1:8", "a carriage return without a line feed"},
    {"a lone surrogate escape", "data_dir: \"\\ud800\"\n", "config.syntax", ":1:", "not valid YAML"},
    {"an output path that climbs", "output_dir: ../../x\n", "config.value", ":1:13", "output path contains '..'"},
    {"garbage after a NUL byte", std::string("lr: 1\n\0garbage", 14), "config.encoding", ":2:1", "a control byte"},
    {"an included file", "include: other.yaml\n", "config.key", ":1:1", "include: no such key"},
    {"a schema of another version", "schema_version: 99\nlr: 1\n", "config.key", ":1:1", "schema_version: no such key"},
    {"an unknown preset", "preset: small\n", "config.value", ":1:9", "preset: no such preset (got 'small'"},
    {"a combination", "resume: latest\noverwrite: true\n", "config.value", ":2:12", "overwrite: contradicts --resume"},
    {"a strategy without a launcher", "strategy: ddp\n", "config.value", ":1:11",
     "strategy: needs a launcher (got 'ddp'"},
};

const std::vector<BadFile> kBadJson = {
    {"empty", "", "config.empty", "", "no settings in the file"},
    {"a root list", "[1]", "config.type", ":1:1", "the file is not a mapping"},
    {"a root scalar", " 3", "config.type", ":1:2", "the file is not a mapping"},
    {"a trailing comma", "{\"lr\": 1,\n}", "config.syntax", ":2:1", "not valid JSON"},
    {"a comment", "{\n// no\n\"lr\": 1}", "config.syntax", ":2:", "not valid JSON"},
    {"single quotes", "{'lr': 1}", "config.syntax", ":1:2", "not valid JSON"},
    {"a key twice", "{\"lr\": 1,\n \"lr\": 2}", "config.duplicate", ":2:2", "lr: given twice"},
    {"a key twice, escaped", "{\"lr\": 1, \"l\\u0072\": 2}", "config.duplicate", ":1:11", "lr: given twice"},
    {"NaN", "{\"lr\": NaN}", "config.value", ":1:8", "lr: not a finite number (got 'NaN'"},
    {"Infinity where a key must be", "{Infinity", "config.syntax", ":1:", "not valid JSON"},
    {"Infinity where a comma must be", "{\"lr\": 1 Infinity}", "config.syntax", ":1:", "not valid JSON"},
    {"-Infinity", "{\"lr\": -Infinity}", "config.value", ":1:8", "lr: not a finite number"},
    {"1e999", "{\"lr\": 1e999}", "config.value", ":1:8", "lr: too large or too small for a double (got '1e999'"},
    {"an octal look", "{\"seed\": 010}", "config.syntax", ":1:", "not valid JSON"},
    {"a hexadecimal integer", "{\"seed\": 0x10}", "config.syntax", ":1:", "not valid JSON"},
    {"a lone surrogate", "{\"data_dir\": \"\\ud800\"}", "config.syntax", ":1:", "not valid JSON"},
    {"truncated", "{\"lr\": 1", "config.syntax", ":1:", "not valid JSON"},
    {"truncated in a string", "{\"lr", "config.syntax", ":1:", "not valid JSON"},
    {"more after the end", "{\"lr\": 1} {}", "config.syntax", ":1:11", "not valid JSON"},
    {"a root null", "null", "config.empty", "", "no settings"},
    {"a byte-order mark alone", "\xef\xbb\xbf", "config.empty", "", "no settings"},
    {"a string for a number", "{\"lr\": \"fast\"}", "config.type", ":1:8", "lr: a string, not a number (got 'fast'"},
    {"a brace in a string before", "{\"data_dir\": \"a\\\"}],{\",\n\"seed\": 1.5}", "config.type", ":2:9",
     "not an integer (got '1.5'"},
    {"garbage after a NUL byte", std::string("{\"lr\": 1}\0 garbage", 18), "config.encoding", ":1:10",
     "a control byte"},
    {"garbage after a NUL byte in a string", std::string("{\"data_dir\": \"a\0\"} {", 19), "config.encoding", ":1:16",
     "a control byte"},
    {"UTF-16", std::string("\xff\xfe{\0}\0", 6), "config.encoding", ":1:1", "looks like UTF-16"},
    {"invalid UTF-8", "{\"data_dir\": \"\xff\"}", "config.encoding", ":1:15", "not valid UTF-8"},
    {"a lone carriage return", "{\r\"lr\": 1}", "config.encoding", ":1:2", "a carriage return without a line feed"},
    {"an open bracket", "{\"gpu_ids\": [0, 1}", "config.syntax", ":1:", "not valid JSON"},
    {"an open brace", "{\"lr\": 1,", "config.syntax", ":1:", "not valid JSON"},
    {"a section with a key twice", "{\"train\": {\"lr\": 1, \"lr\": 2}}", "config.key", ":1:2", "without sections"},
    {"null for a required value", "{\"seed\": null}", "config.type", ":1:10", "seed: null, not an integer"},
    {"an empty key", "{\"\": 1}", "config.key", ":1:2", "no such key"},
    {"a raw newline in a string", "{\"data_dir\": \"a\nb\"}", "config.syntax", ":1:", "not valid JSON"},
};

void check_bad_file(const BadFile& file, const std::string& name) {
  const TempDir folder;
  const absl::Status status = start_with(folder, name, file.text);
  check_error(status, ExitCode::kConfig, file.id);
  const std::string where = error_of(status)->where;
  CHECK(where.starts_with(folder / name + file.at));
  if (!file.at.ends_with(':')) CHECK(where == folder / name + file.at);
  CHECK_THAT(error_text(status), Catch::Contains(file.part));
}

/// Peak resident size of this process since the last reset.
int64_t peak_rss_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}
void reset_peak_rss() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace

TEST_CASE("A bad YAML file ends with exit code 3 and its file, line and column", "[config][config_file]") {
  for (const BadFile& file : kBadYaml) {
    SECTION(file.what) { check_bad_file(file, "run.yaml"); }
  }
}

TEST_CASE("A bad JSON file ends with exit code 3 and its file, line and column", "[config][config_file]") {
  for (const BadFile& file : kBadJson) {
    SECTION(file.what) { check_bad_file(file, "run.json"); }
  }
}

TEST_CASE("The same error has the same words in YAML and in JSON", "[config][config_file]") {
  // The value after "key: " in both formats; JSON is valid YAML by default.
  const std::vector<std::pair<std::string, std::string>> faults = {{"seed", "\"eight\""},
                                                                   {"seed", "3.0"},
                                                                   {"seed", "1e3"},
                                                                   {"seed", "-1"},
                                                                   {"seed", "true"},
                                                                   {"seed", "null"},
                                                                   {"seed", "[1]"},
                                                                   {"seed", "{\"a\": 1}"},
                                                                   {"lr", "\"fast\""},
                                                                   {"lr", "0"},
                                                                   {"lr", "1e999"},
                                                                   {"lr", "true"},
                                                                   {"drop_last", "1"},
                                                                   {"drop_last", "\"yes\""},
                                                                   {"hidden_dim", "0"},
                                                                   {"max_steps", "9223372036854775808"},
                                                                   {"precision", "\"fp8\""},
                                                                   {"precision", "\"BF16\""},
                                                                   {"tokenizer", "8"},
                                                                   {"data_dir", "\"\""},
                                                                   {"data_dir", "true"},
                                                                   {"gpu_ids", "[]"},
                                                                   {"gpu_ids", "0"},
                                                                   {"gpu_ids", "[0, \"one\"]"},
                                                                   {"gpu_ids", "[0, 0]"},
                                                                   {"timeout", "\"1y\""},
                                                                   {"hiden_dim", "8"},
                                                                   {"config", "\"other\""},
                                                                   {"output_dir", "\"../../x\""},
                                                                   {"preset", "\"small\""}};
  for (const auto& [key, value] : faults) {
    const TempDir folder;
    const auto yaml = error_of(start_with(folder, "run.yaml", key + ": " + value + "\n"));
    const auto json = error_of(start_with(folder, "run.json", "{\"" + key + "\": " + value + "}"));
    INFO(key << ": " << value);
    REQUIRE(yaml.has_value());
    REQUIRE(json.has_value());
    CHECK(yaml->exit_code == ExitCode::kConfig);
    CHECK(json->exit_code == ExitCode::kConfig);
    CHECK(yaml->id == json->id);
    CHECK(yaml->field == json->field);
    CHECK(yaml->problem == json->problem);
    CHECK(yaml->got == json->got);
    CHECK(yaml->expected == json->expected);
    CHECK(yaml->hint == json->hint);
  }
}

TEST_CASE("Nothing in a file is expanded: a variable of the environment is text", "[config][config_file]") {
  const TempDir folder;
  setenv("TRAINKIT_TEST_VARIABLE", "elsewhere", 1);
  for (const std::string text : {"${TRAINKIT_TEST_VARIABLE}", "$TRAINKIT_TEST_VARIABLE", "${TRAINKIT_TEST_VARIABLE",
                                 "${UNSET_VARIABLE}", "~/data", "`id`", "$(id)"}) {
    for (const bool json : {false, true}) {
      TrainerFlags program;
      const std::string file = json ? write(folder / "run.json", "{\"data_dir\": \"" + text + "\"}")
                                    : write(folder / "run.yaml", "data_dir: \"" + text + "\"\n");
      REQUIRE(program.start({"--config", file}).ok());
      CHECK(program.run.data_dir == folder / text);  // a relative path starts at the file's folder
    }
  }
  unsetenv("TRAINKIT_TEST_VARIABLE");
}

TEST_CASE("A required setting that is missing from a file is reported with the file", "[config][config_file]") {
  const TempDir folder;
  std::string data_dir;
  ConfigParser with_file({.name = "train"}), without({.name = "train"});
  for (ConfigParser* parser : {&with_file, &without}) parser->add("data_dir", &data_dir, {.required = true});
  check_error(with_file.parse({"--config", write(folder / "run.yaml", "{}\n")}).status(), ExitCode::kConfig,
              "config.missing");
  check_error(without.parse(std::vector<std::string>{}).status(), ExitCode::kUsage, "cli.missing");
}

TEST_CASE("An unreadable file ends with exit code 3", "[config][config_file]") {
  if (geteuid() == 0) {
    // Root can read everything; a file that fails during reading is the closest case.
    TrainerFlags program;
    check_error(program.start({"--config", "/proc/self/mem"}), ExitCode::kConfig, "config.file");
    return;
  }
  const TempDir folder;
  write(folder / "run.yaml", "lr: 1\n");
  std::filesystem::permissions(folder / "run.yaml", std::filesystem::perms::none);
  TrainerFlags program;
  check_error(program.start({"--config", folder / "run.yaml"}), ExitCode::kConfig, "config.file");
}

TEST_CASE("Hostile files end within seconds and little memory", "[config][config_file]") {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i <= 9; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += (k ? ", *a" : "*a") + std::to_string(i - 1);
    bomb += "]\n";
  }
  std::string keys;
  for (int i = 0; i < 60000; ++i) keys += "? k" + std::to_string(i) + "\n";
  const size_t most = (1 << 20) - 100;
  const std::vector<std::pair<std::string, std::string>> files = {
      {"run.yaml", std::string(200000, '[')},
      {"run.json", std::string(200000, '[')},
      {"run.yaml", "gpu_ids: " + std::string(200000, '[')},
      {"run.json", "{\"gpu_ids\": " + std::string(200000, '[')},
      {"run.yaml", std::string(200000, '{')},
      {"run.yaml", "gpu_ids: " + std::string(200000, '{')},
      {"run.yaml", std::string(200000, '-')},
      {"run.yaml", "gpu_ids:\n" +
                       [] {
                         std::string text;
                         for (int i = 0; i < 200000; ++i) text += "- ";
                         return text;
                       }()},
      {"run.yaml", std::string(200000, '?')},
      {"run.yaml",
       [] {
         std::string text;
         for (int i = 0; i < 200000; ++i) text += "? ";
         return text;
       }()},
      {"run.yaml",
       [] {
         std::string text;
         for (int i = 0; i < 1000; ++i) text += std::string(i, ' ') + "a:\n";
         return text;
       }()},
      {"run.yaml", bomb},
      {"run.yaml", keys},
      {"run.yaml", "data_dir: \"" + std::string(most, 'a')},
      {"run.yaml", std::string(most, 'a') + ": 1\n"},
      {"run.yaml", "lr: " + std::string(most, '9') + "\n"},
      {"run.json", "{\"lr\": " + std::string(most, '9') + "}"},
      {"run.yaml", "gpu_ids: [" +
                       [] {
                         std::string text;
                         for (int i = 0; i < 400000; ++i) text += "1,";
                         return text;
                       }() +
                       "]\n"},
      {"run.json", "{\"gpu_ids\": [" +
                       [] {
                         std::string text;
                         for (int i = 0; i < 400000; ++i) text += "1,";
                         return text;
                       }() +
                       "1]}"},
      {"run.yaml", std::string(50 << 20, '#')},
      {"run.json", std::string(50 << 20, ' ')},
  };
  const TempDir folder;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto& [name, text] = files[i];
    INFO(i << ": " << name << " " << escape_text(text, 60));
    write(folder / name, text);
    reset_peak_rss();
    const int64_t rss = peak_rss_bytes();
    const clock_t begin = clock();
    TrainerFlags program;
    const absl::Status status = program.start({"--config", folder / name});
    const double cpu_seconds = double(clock() - begin) / CLOCKS_PER_SEC;
    CHECK(exit_code(status) == ExitCode::kConfig);
    CHECK(error_line(status).size() <= 400);
    CHECK(cpu_seconds < 5);  // the documented limit; milliseconds are usual
    CHECK(peak_rss_bytes() - rss < (256 << 20));
  }
}
