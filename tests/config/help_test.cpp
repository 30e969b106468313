// --help and --completion of a program with many flags.
#include <algorithm>
#include <cstdio>

#include "config_test_util.h"
#include "logging/environment_variable.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// A program of the kit's kind: own flags in the groups Model and Data files, and shared ones.
struct Kit {
  RunOptions run;
  int64_t width = 8;
  std::string network = "small", file;
  bool augment = true;
  ConfigParser parser{{.name = "kit",
                       .version = "1.0",
                       .description = "Trains a network on files.",
                       .examples = {"kit --file a.npy", "kit --file b.npy --network large", "3", "4", "5"},
                       .help_flags = {"file", "network"},
                       .shared_groups = {"Data", "Run", "Optimization", "Devices"},
                       .shared_flags = {"epochs", "batch_size"},
                       .commands = {{"use", "Uses a trained network."}, {"draw-it", "Draws it."}},
                       .remark = "A remark."}};
  Kit() {
    add_run_flags(parser, run);
    const OptionGroup model(parser, "Model"), files(parser, "Data files");
    model("width", &width, {.help = "Width of a layer. More is slower.", .min = 1, .max = 4096});
    model("network", &network, {.help = "Network; see the page.", .choices = {"small", "large", "huge"}});
    model("augment", &augment, {.help = "Augment rows."});
    files("file", &file, {.help = "File to read.", .aliases = {"input_file"}, .path = PathKind::kInput});
    parser.add_preset("quick", {{"width", "4"}}, "for a test");
  }
  std::string help(const std::vector<std::string>& words) {
    const auto request = parser.parse(words);
    INFO(request.status());
    REQUIRE(request.ok());
    REQUIRE(*request == Request::kHelp);
    return parser.text(*request);
  }
};

/// Runs `script` in bash and returns its output.
std::string bash(const TempDir& dir, const std::string& script) {
  std::ofstream(dir / "script") << script;
  std::FILE* pipe = popen(("cd " + dir.path().string() + " && bash --norc --noprofile script 2>&1").c_str(), "r");
  REQUIRE(pipe);
  std::string output(1 << 16, '\0');
  output.resize(fread(output.data(), 1, output.size(), pipe));
  REQUIRE(pclose(pipe) == 0);
  return output;
}

/// What bash offers for a command line whose last word is at the cursor.
std::vector<std::string> offered(const TempDir& dir, const std::string& completion,
                                 const std::vector<std::string>& words) {
  std::string script = completion + "\nCOMP_WORDS=(";
  for (const std::string& word : words) script += "'" + word + "' ";
  script += ")\nCOMP_CWORD=" + std::to_string(words.size() - 1) +
            "\n$(complete -p kit | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
  return split_lines(bash(dir, script));
}

std::string completion_of(const std::string& shell) {
  Kit kit;
  REQUIRE(kit.parser.parse({"--completion", shell}).value() == Request::kCompletion);
  return kit.parser.text(Request::kCompletion);
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("--help is one screen with the program's own flags first, and tells how to see the rest", "[config][help]") {
  for (const char* columns : {"80", "100", "120"}) {
    const EnvironmentVariable terminal("COLUMNS", columns);
    const std::string help = Kit().help({"--help"});
    INFO(help);
    const std::vector<std::string> lines = split_lines(help);
    CHECK(lines.size() <= 40);
    for (const std::string& line : lines) {
      CHECK(line.size() <= std::stoul(columns));
      CHECK_FALSE(line.ends_with(' '));
    }
    for (const char* part : {"Usage: kit", "Trains a network", "kit --file a.npy", "  4\n", "  use ", "Draws it",
                             "--file PATH", "--network small|large|huge", "Network [default: small]", "--preset NAME",
                             "--epochs N", "--help all", "--help FLAG", "data_files,"}) {
      CHECK_THAT(help, Catch::Contains(part));
    }
    for (const char* part : {"--width", "--lr", "see the page", "  5\n", "Precedence"}) {
      CHECK_THAT(help, !Catch::Contains(part));
    }
    CHECK(help.find("--file PATH") < help.find("--network small"));
    CHECK(help.find("--network small") < help.find("--epochs"));
  }
}

TEST_CASE("--help all, a heading and a flag show the rest", "[config][help]") {
  const EnvironmentVariable terminal("COLUMNS", "100");
  const std::string all = Kit().help({"-h", "all"});
  for (const char* part :
       {"\nModel:\n", "\nData files:\n", "\nRun:\n", "\nConfiguration:\n", "\nPresets:\n", "--width N",
        "More is slower.", "also --input_file", "--lr X", "  5\n", "Precedence", "A remark."}) {
    CHECK_THAT(all, Catch::Contains(part));
  }
  CHECK(all.find("\nModel:\n") < all.find("\nData files:\n"));
  CHECK(all.find("\nData files:\n") < all.find("\nData:\n"));
  CHECK(all.find("\nDevices:\n") < all.find("\nConfiguration:\n"));
  const std::string group = Kit().help({"--help", "Data-files"});
  CHECK(split_lines(group).size() == 2);
  CHECK_THAT(group, Catch::StartsWith("Data files:\n  --file PATH"));
  CHECK_THAT(Kit().help({"--help=run"}), Catch::Contains("--max_steps") && !Catch::Contains("--width"));
  CHECK_THAT(Kit().help({"--help=--width"}), Catch::StartsWith("  --width N"));
  CHECK_THAT(Kit().help({"--help", "input-file"}), Catch::StartsWith("  --file PATH"));
  check_error(Kit().parser.parse({"--help", "modle"}).status(), ExitCode::kUsage, "cli.value");
  CHECK_THAT(error_text(Kit().parser.parse({"--help", "modle"}).status()),
             Catch::Contains("--help: no such heading or flag (got 'modle', expected all, model, data_files, ") &&
                 Catch::Contains("did you mean --help model?"));
}

TEST_CASE("Lines wrap at the terminal's width", "[config][help]") {
  for (const int columns : {57, 80, 120}) {
    const EnvironmentVariable terminal("COLUMNS", std::to_string(columns).c_str());
    for (const std::string& line : split_lines(Kit().help({"--help", "all"}))) {
      INFO(columns << ": " << line);
      const bool is_word = line.find(' ', line.find_first_not_of(' ')) == std::string::npos || line.starts_with("  --");
      CHECK((line.size() <= static_cast<size_t>(columns) || (columns < 80 && is_word)));
    }
  }
  const EnvironmentVariable terminal("COLUMNS", "no number");
  for (const std::string& line : split_lines(Kit().help({"--help"}))) CHECK(line.size() <= 80);
}

TEST_CASE("A program with few flags shows all of them", "[config][help]") {
  int64_t width = 8;
  ConfigParser parser({.name = "small"});
  parser.add("width", &width, {.help = "Width. In full."});
  REQUIRE(parser.parse({"--help"}).value() == Request::kHelp);
  const std::string help = parser.text(Request::kHelp);
  CHECK_THAT(help,
             Catch::Contains("Width. In full.") && Catch::Contains("--config PATH") && !Catch::Contains("--preset"));
  CHECK(help.find("--width") < help.find("--config"));
}

TEST_CASE("bash completes flags, commands, values of choices and paths", "[config][completion]") {
  const TempDir dir;
  const std::string script = completion_of("bash");
  std::ofstream(dir / "table one.npy") << "";
  std::filesystem::create_directory(dir / "tables");
  CHECK_THAT(bash(dir, script + "\ncomplete -p kit"), Catch::Contains("-F _kit kit"));
  const auto offers = [&](const Words& words) { return offered(dir, script, words); };
  CHECK(offers({"kit", "--netw"}) == Words{"--network"});
  CHECK(offers({"kit", "--max_s"}) == Words{"--max_steps"});
  CHECK(offers({"kit", "--max-s"}) == Words{"--max-steps"});
  CHECK(offers({"kit", "--no_aug"}) == Words{"--no_augment"});
  CHECK(offers({"kit", "--network", ""}) == Words{"small", "large", "huge"});
  CHECK(offers({"kit", "--network", "h"}) == Words{"huge"});
  CHECK(offers({"kit", "--network", "=", "l"}) == Words{"large"});  // bash splits --network=l
  CHECK(offers({"kit", "--network", "="}) == Words{"small", "large", "huge"});
  CHECK(offers({"kit", "--on-error", "s"}) == Words{"skip"});
  CHECK(offers({"kit", "--batch_size", "a"}) == Words{"auto"});
  CHECK(offers({"kit", "--device", "cu"}) == Words{"cuda"});
  CHECK(offers({"kit", "--preset", ""}) == Words{"quick"});
  CHECK(offers({"kit", "--help", "data"}) == Words{"data_files", "data"});
  CHECK(offers({"kit", "--completion", ""}) == Words{"bash", "zsh"});
  CHECK(offers({"kit", "--lr", ""}) == Words{""});  // any number
  CHECK(offers({"kit", "--input-file", "tab"}).size() == 2);
  CHECK_THAT(offers({"kit", "--file", "table"}), Catch::VectorContains(std::string("table one.npy")));
  CHECK(offers({"kit", "--resume", "la"}) == Words{"latest"});
  CHECK(offers({"kit", "us"}) == Words{"use"});
  CHECK(offers({"kit", "--network", "large", "--wid"}) == Words{"--width"});
  CHECK_THAT(offers({"kit", "--augment", ""}), Catch::VectorContains(std::string("--network")));

  // A command has its own function.
  const std::string command = script + "_kit_draw_it() { COMPREPLY=(\"${COMP_WORDS[COMP_CWORD]}ed\"); }\n";
  CHECK(offered(dir, command, {"kit", "draw-it", "paint"}) == Words{"painted"});
  CHECK(offered(dir, command, {"kit", "other", "--wid"}) == Words{"--width"});
}

TEST_CASE("zsh gets each flag with its description and values", "[config][completion]") {
  const std::string script = completion_of("zsh");
  for (const char* part :
       {"'--network=[Network; see the page.]:network:(small large huge)'", "'--file=[File to read.]:file:_files'",
        "'--no_augment[not\\: Augment rows.]'", "compdef _kit kit", "use\\:\"Uses a trained network.\""}) {
    CHECK_THAT(script, Catch::Contains(part));
  }
}

TEST_CASE("--completion takes the name of a shell", "[config][completion]") {
  for (const std::vector<std::string>& words : {Words{"--completion"}, {"--completion", "fish"}, {"--completion="}}) {
    check_error(Kit().parser.parse(words).status(), ExitCode::kUsage, "cli.value");
  }
}
