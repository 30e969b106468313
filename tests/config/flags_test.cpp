// Invalid and unusual command lines, one per row, with the expected results.
#include <sys/stat.h>

#include "config_test_util.h"
#include "logging/environment_variable.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

struct BadLine {
  std::vector<std::string> arguments;
  const char* id;
  /// Parts of the error's two lines.
  std::vector<std::string> text;
};

const std::string kHuge(1 << 20, '9');

const std::vector<BadLine> kBadLines = {
    {{"--epochz", "3"}, "cli.unknown", {"--epochz: no such flag", "did you mean --epoch?"}},
    {{"--btach-size", "3"}, "cli.unknown", {"did you mean --batch_size?"}},
    {{"--no-drop-lats"}, "cli.unknown", {"did you mean --no_drop_last?"}},
    {{"--no-epochs", "3"}, "cli.unknown", {"--no-epochs"}},
    {{"--bat", "8"}, "cli.unknown", {"--bat: no such flag", "did you mean --batch_size?"}},
    {{"--set", "a.b=1"}, "cli.unknown", {"--set"}},
    {{"-x"}, "cli.positional", {"-x"}},
    {{"--=3"}, "cli.unknown", {}},
    {{"--batch_size"}, "cli.missing", {"--batch_size: no value"}},
    {{"--batch_size", "--lr", "1"}, "cli.missing", {"--batch_size: no value"}},
    {{"--gpu_ids"}, "cli.missing", {"--gpu_ids"}},
    {{"--batch-size="}, "cli.missing", {"--batch-size: no value"}},
    {{"--batch-size", ""}, "cli.value", {"not an integer or 'auto'"}},
    {{"--batch-size", "0"}, "cli.value", {"--batch-size: out of range (got '0', expected 1..1048576 or auto)"}},
    {{"--batch-size", "-1"}, "cli.value", {"out of range (got '-1'"}},
    {{"--batch-size", "1.5"}, "cli.value", {"not an integer or 'auto' (got '1.5'"}},
    {{"--hidden-dim", "1e3"}, "cli.value", {"--hidden-dim: not an integer (got '1e3', expected 1..65536)"}},
    {{"--hidden-dim", "0x10"}, "cli.value", {"not an integer (got '0x10'"}},
    {{"--hidden-dim", "010"}, "cli.value", {"not an integer (got '010'"}},
    {{"--hidden-dim", "+8"}, "cli.value", {"not an integer (got '+8'"}},
    {{"--hidden-dim", "1_000"}, "cli.value", {"not an integer (got '1_000'"}},
    {{"--hidden-dim", "\xef\xbc\x98"}, "cli.value", {"not an integer (got '\xef\xbc\x98'"}},
    {{"--hidden-dim", "99999999999999999999"}, "cli.value", {"out of range (got '99999999999999999999'"}},
    {{"--hidden-dim", " 8"}, "cli.value", {"not an integer (got ' 8'"}},
    {{"--hidden-dim", "8 "}, "cli.value", {"not an integer (got '8 '"}},
    {{"--hidden-dim", "8abc"}, "cli.value", {"not an integer (got '8abc'"}},
    {{"--hidden-dim", "--8"}, "cli.value", {"not an integer (got '--8'"}},
    {{"--lr", "nan"}, "cli.value", {"--lr: not a finite number (got 'nan', expected > 0 and <= 1000000)"}},
    {{"--lr", "inf"}, "cli.value", {"not a finite number"}},
    {{"--lr", "-Infinity"}, "cli.value", {"not a finite number"}},
    {{"--lr", "-1e-3"}, "cli.value", {"out of range (got '-1e-3'"}},
    {{"--lr", "0"}, "cli.value", {"out of range (got '0'"}},
    {{"--lr", "1e400"}, "cli.value", {"too large or too small for a double (got '1e400'"}},
    {{"--lr", "1e-400"}, "cli.value", {"too large or too small for a double (got '1e-400'"}},
    {{"--lr", "0,001"}, "cli.value", {"not a number (got '0,001'"}},
    {{"--lr", "0x1p3"}, "cli.value", {"not a number"}},
    {{"--lr", "010.5"}, "cli.value", {"not a number"}},
    {{"--lr", "."}, "cli.value", {"not a number"}},
    {{"--lr", "1e"}, "cli.value", {"not a number"}},
    {{"--lr", "1 "}, "cli.value", {"not a number"}},
    {{"--dropout", "1"}, "cli.value", {"out of range (got '1', expected 0..0.99)"}},
    {{"--ema", "1"}, "cli.value", {"--ema: out of range (got '1'"}},
    {{"--epochs", "0"}, "cli.value", {"--epochs: out of range"}},
    {{"--seed", "-1"}, "cli.value", {"--seed: out of range (got '-1', expected 0..18446744073709551615)"}},
    {{"--seed", "18446744073709551616"}, "cli.value", {"out of range"}},
    {{"--mixed-precision", "maybe"}, "cli.value", {"not a boolean (got 'maybe', expected true or false)"}},
    {{"--mixed-precision=1"}, "cli.value", {"not a boolean (got '1'"}},
    {{"--mixed-precision=True"}, "cli.value", {"not a boolean (got 'True'"}},
    {{"--no-mixed-precision=true"}, "cli.value", {"takes no value"}},
    {{"--print_config=true"}, "cli.value", {"takes no value"}},
    {{"--no-print_config"}, "cli.unknown", {}},
    {{"--no-help"}, "cli.unknown", {}},
    {{"--precision", "fp16", "--device", "cpu"}, "cli.value", {"--precision: fp16 needs a GPU"}},
    {{"--precision", "fp8"}, "cli.value", {"not one of the choices (got 'fp8', expected fp32, bf16 or fp16)"}},
    {{"--precision", "BF16"}, "cli.value", {"did you mean 'bf16'?"}},
    {{"--precision", "fp32", "--mixed_precision"}, "cli.value", {"--precision: contradicts --mixed_precision"}},
    {{"--no-mixed-precision", "--precision", "bf16"}, "cli.value", {"contradicts --no-mixed-precision"}},
    {{"--device", "cuda"}, "cli.value", {"--device: no GPU on this machine (got 'cuda', expected cpu)"}},
    {{"--device", "cuda:9"}, "cli.value", {"no GPU on this machine"}},
    {{"--device", "gpu"}, "cli.value", {"not a device (got 'gpu', expected auto, cpu, cuda or cuda:N)"}},
    {{"--device", "cuda:-1"}, "cli.value", {"not a device"}},
    {{"--device", "cuda:01"}, "cli.value", {"not a device"}},
    {{"--device", "cuda:"}, "cli.value", {"not a device"}},
    {{"--device", "cuda:99999999999"}, "cli.value", {"not a device"}},
    {{"--gpu_ids", "0,0", "--use_multi_gpu"}, "cli.value", {"--gpu_ids: duplicate element (got '0'"}},
    {{"--gpu_ids", "0", "x"}, "cli.value", {"--gpu_ids: not an integer (got 'x'"}},
    {{"--gpu_ids", "0,,1"}, "cli.value", {"--gpu_ids: not an integer"}},
    {{"--gpu_ids", "-1"}, "cli.value", {"--gpu_ids: out of range (got '-1', expected 0..127)"}},
    {{"--gpu_ids", "0", "1"}, "cli.value", {"--gpu_ids: needs --use_multi_gpu (got '[0, 1]')"}},
    {{"--use_multi_gpu"}, "cli.value", {"--use_multi_gpu: no GPU on this machine", "--device cpu --parallel N"}},
    {{"--use_multi_gpu", "--gpu_ids", "0", "1"}, "cli.value", {"--use_multi_gpu: no GPU on this machine"}},
    {{"--strategy", "ddp"}, "cli.value", {"--strategy: needs a launcher (got 'ddp'", "trainkit launch"}},
    {{"--strategy", "single", "--parallel", "2"}, "cli.value", {"--strategy: contradicts the 2 devices requested"}},
    {{"--parallel", "0"}, "cli.value", {"--parallel: out of range (got '0', expected 1..128)"}},
    {{"--grad_compression", "fp16"}, "cli.value", {"--grad_compression: needs strategy ddp"}},
    {{"--sync_batchnorm", "16"}, "cli.value", {"--sync_batchnorm: not one of the choices"}},
    {{"--grad_compression", "int8"}, "cli.value", {"--grad_compression: not one of the choices"}},
    {{"--dist_timeout", "0"}, "cli.value", {"--dist_timeout: out of range"}},
    {{"--batch_size", "AUTO"}, "cli.value", {"not an integer or 'auto' (got 'AUTO'"}},
    {{"--batch_size=8", "--global_batch_size=12"}, "cli.value", {"--global_batch_size: not a multiple of batch_size"}},
    {{"--batch_size=8", "--global_batch_size=32", "--accumulation_steps=2"},
     "cli.value",
     {"--global_batch_size: contradicts --accumulation_steps (got '32', expected 16)"}},
    {{"--batch_size", "8", "--batch-size", "9"}, "cli.duplicate", {"--batch-size: given twice (also as --batch_size)"}},
    {{"--batch_size=8", "--batch_size=8"}, "cli.duplicate", {"--batch_size: given twice"}},
    {{"--epoch", "3", "--max-epochs", "4"}, "cli.duplicate", {"--max-epochs: given twice (also as --epoch)"}},
    {{"--pin_memory", "--no-pin_memory"}, "cli.duplicate", {"--no-pin_memory: given twice (also as --pin_memory)"}},
    {{"--resume", "latest", "--overwrite"}, "cli.value", {"--overwrite: contradicts --resume"}},
    {{"--resume", "latest", "--init_from", "w.pt"}, "cli.value", {"--init_from: contradicts --resume"}},
    {{"--resume"}, "cli.missing", {"--resume: no value"}},
    {{"--tokenizer", "a\x1b[31m\nb"}, "cli.value", {"(got 'a\\x1b[31m\\x0ab'"}},
    {{"--a\x1b\nb"}, "cli.unknown", {"--a\\x1b\\x0ab"}},
    {{"--input", "\xff\xfe.txt"}, "cli.value", {"--input: not valid UTF-8 (got '\\xff\\xfe.txt'"}},
    {{"--\xff"}, "cli.unknown", {"--\\xff"}},
    {{"--tokenizer", "\u202egpt2"}, "cli.value", {"(got '\\u{202e}gpt2'", "did you mean 'gpt2'?"}},
    {{"--hidden_dim", kHuge}, "cli.value", {"out of range (got '999999999"}},
    {{"--lr", kHuge}, "cli.value", {"not a number (got '999999999"}},
    {{"--timeout", kHuge}, "cli.value", {"--timeout"}},
    {{"--tokenizer", kHuge}, "cli.value", {"not one of the choices"}},
    {{std::string("--").append(kHuge)}, "cli.positional", {}},
    {{std::string("--x").append(kHuge)}, "cli.unknown", {"--x999"}},
    {{kHuge}, "cli.positional", {"999"}},
    {{"train.txt"}, "cli.positional", {"train.txt: unexpected argument"}},
    {{"--lr", "1e-3", "train.txt"}, "cli.positional", {"train.txt"}},
    {{"@args.txt"}, "cli.positional", {"@args.txt"}},
    {{"--"}, "cli.positional", {"--: unexpected argument"}},
    {{""}, "cli.positional", {}},
    {{"--num_workers", "100000"}, "cli.value", {"out of range (got '100000', expected 0..1024 or auto)"}},
    {{"--log_every", "1e3"}, "cli.value", {"--log_every: not an integer (got '1e3'"}},
    {{"--keep_last", "\xef\xbc\x98"}, "cli.value", {"--keep_last: not an integer"}},
    {{"--global_batch_size", "0"}, "cli.value", {"--global_batch_size: out of range (got '0'"}},
    {{"--from-scratch"}, "cli.unknown", {"--from-scratch: no such flag"}},
    {{"--resume", "latest", "--no-resume"}, "cli.unknown", {"--no-resume"}},
    {{"--on_error", "ignore"}, "cli.value", {"expected fail, skip or replace"}},
    {{"--output_dir", std::string("a\0b", 3)}, "cli.value", {"--output_dir: holds a NUL byte"}},
    {{"--threads", "0"}, "cli.value", {"out of range (got '0', expected 1..1024 or auto)"}},
    {{"--num_workers", "many"}, "cli.value", {"not an integer or 'auto' (got 'many'"}},
    {{"--prefetch_factor", "0"}, "cli.value", {"out of range (got '0', expected 1..64 or auto)"}},
    {{"--timeout", "-1"}, "cli.value", {"--timeout: out of range (got '-1', expected 0..1000000"}},
    {{"--timeout", "10 s"}, "cli.value", {"not a time"}},
    {{"--timeout", "1y"}, "cli.value", {"not a time"}},
    {{"--timeout", "h"}, "cli.value", {"not a time"}},
    {{"--max_time", "1h30"}, "cli.value", {"not a time (got '1h30'"}},
    {{"--max_bad_samples", "101%"}, "cli.value", {"not an integer (got '101%'"}},
    {{"--save_every", "-1"}, "cli.value", {"out of range"}},
    {{"--max_steps", "9007199254740993000"}, "cli.value", {"out of range"}},
    {{"--preset", "smal_gpu"}, "cli.value", {"--preset: no such preset (got 'smal_gpu'", "did you mean small_gpu?"}},
    {{"--data_dir", ""}, "cli.value", {"--data_dir: empty"}},
};

}  // namespace

TEST_CASE("A bad command line ends with exit code 2 and one line that names the flag", "[config][flags]") {
  for (const BadLine& line : kBadLines) {
    std::string shown;
    for (const std::string& argument : line.arguments) shown.append(" ").append(escape_text(argument, 60));
    SECTION("program" + shown) {
      TrainerFlags program;
      const absl::Status status = program.start(line.arguments);
      check_error(status, ExitCode::kUsage, line.id);
      for (const std::string& part : line.text) CHECK_THAT(error_text(status), Catch::Contains(part));
    }
  }
}

TEST_CASE("Ten thousand flags are refused at the first duplicate", "[config][flags]") {
  std::vector<std::string> arguments;
  for (int i = 0; i < 10000; ++i) arguments.push_back("--seed=" + std::to_string(i));
  TrainerFlags program;
  check_error(program.start(arguments), ExitCode::kUsage, "cli.duplicate");
}

TEST_CASE("Ten thousand unknown flags are refused at the first", "[config][flags]") {
  std::vector<std::string> arguments;
  for (int i = 0; i < 10000; ++i) arguments.push_back("--flag" + std::to_string(i));
  TrainerFlags program;
  const absl::Status status = program.start(arguments);
  check_error(status, ExitCode::kUsage, "cli.unknown");
  CHECK_THAT(error_line(status), Catch::Contains("--flag0: no such flag"));
}

TEST_CASE("A configuration file that cannot be read ends with exit code 3", "[config][flags]") {
  const TempDir folder;
  const auto refused = [](const std::string& path, const std::string& text) {
    TrainerFlags program;
    const absl::Status status = program.start({"--config", path});
    check_error(status, ExitCode::kConfig, "config.file");
    CHECK_THAT(error_text(status), Catch::Contains(text));
  };
  refused(folder / "none.yaml", "No such file");
  refused("-", "-: No such file");
  refused(folder.path().string(), "a folder");
  REQUIRE(mkfifo((folder / "pipe.yaml").c_str(), 0600) == 0);
  refused(folder / "pipe.yaml", "not a regular file");
  refused("/dev/null", "not a regular file");
  std::filesystem::create_symlink("loop.yaml", folder / "loop.yaml");
  refused(folder / "loop.yaml", "symbolic links");
  refused(std::string(5000, 'x'), "too long");
}

TEST_CASE("Every spelling of a flag gives the same value", "[config][flags]") {
  const std::vector<std::vector<std::string>> spellings = {
      {"--max_epochs", "7"}, {"--max-epochs", "7"}, {"--epochs=7"}, {"--epoch", "7"}, {"--max-epochs=7"}};
  for (const auto& arguments : spellings) {
    TrainerFlags program;
    REQUIRE(program.start(arguments).ok());
    CHECK(program.run.epochs == 7);
    CHECK(program.parser.is_given("epochs"));
    CHECK_FALSE(program.parser.is_given("lr"));
    CHECK(program.parser.source("epochs") == arguments[0].substr(0, arguments[0].find('=')));
  }
}

TEST_CASE("Unusual but valid values are accepted", "[config][flags]") {
  TrainerFlags program;
  const absl::Status status = program.start({"--seed",
                                             "18446744073709551615",
                                             "--lr=5E-1",
                                             "--save_every",
                                             "0",
                                             "--timeout=250ms",
                                             "--drop_last",
                                             "false",
                                             "--no-pin-memory",
                                             "--persistent-workers=true",
                                             "--sample=--help",
                                             "--weight_decay",
                                             ".5",
                                             "--grad-clip",
                                             "1.",
                                             "--max_bad_samples",
                                             "-1",
                                             "--gpu_ids=2,0",
                                             "--gradient-checkpointing",
                                             "--no_use_multi_gpu"});
  INFO(error_text(status));
  REQUIRE(status.ok());
  CHECK(program.run.seed == 18446744073709551615u);
  CHECK(program.run.lr == 0.5);
  CHECK(program.run.save_every == 0);
  CHECK(program.run.timeout == std::chrono::milliseconds(250));
  CHECK_FALSE(program.run.drop_last);
  CHECK_FALSE(program.run.pin_memory);
  CHECK(program.run.persistent_workers);
  CHECK(program.sample == "--help");
  CHECK(program.run.weight_decay == 0.5);
  CHECK(program.run.grad_clip == 1.0);
  CHECK(program.run.gpu_ids == std::vector<int>{2, 0});
  CHECK(program.gradient_checkpointing);
}

TEST_CASE("Numbers do not depend on the locale", "[config][flags]") {
  // C.UTF-8 writes a decimal point; a locale with a comma is not installed everywhere, so both spellings are tried.
  const char* before = setlocale(LC_ALL, nullptr);
  const std::string saved = before ? before : "C";
  setlocale(LC_ALL, "de_DE.UTF-8");
  TrainerFlags program;
  CHECK(program.start({"--lr", "0.25"}).ok());
  CHECK(program.run.lr == 0.25);
  CHECK_THAT(program.parser.to_yaml(), Catch::Contains("lr: 0.25"));
  setlocale(LC_ALL, saved.c_str());
}

TEST_CASE("--help and --version take precedence over every error", "[config][flags]") {
  for (const char* flag : {"--help", "-h"}) {
    TrainerFlags program;
    const auto request = program.parser.parse({"--no-such-flag", flag});
    REQUIRE(request.ok());
    CHECK(*request == Request::kHelp);
  }
  TrainerFlags program;
  CHECK(program.parser.parse({"--lr", "x", "--version"}).value() == Request::kVersion);
  CHECK(program.parser.text(Request::kVersion) == "trainkit-transformer 0.1.0\n");
}

TEST_CASE("Help names every flag with its group, default, aliases and presets", "[config][flags]") {
  TrainerFlags program;
  const EnvironmentVariable terminal("COLUMNS", "110");
  const std::string help = program.parser.help();
  for (const char* part : {"Usage: trainkit-transformer",
                           "\nConfiguration:\n",
                           "\nData:\n",
                           "\nRun:\n",
                           "\nOptimization:\n",
                           "\nDevices:\n",
                           "\nModel:\n",
                           "\nPresets:\n",
                           "--[no-]drop_last",
                           "--batch_size N|auto",
                           "default: 16",
                           "also --epoch, --max_epochs",
                           "--on_error fail|skip|replace",
                           "--gpu_ids N [N ...]",
                           "--output_dir PATH",
                           "default: runs/transformer",
                           "--max_time TIME",
                           "--config PATH",
                           "small_gpu",
                           "--hidden_dim 128"}) {
    CHECK_THAT(help, Catch::Contains(part));
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    CHECK(line.size() <= 110);
    CHECK_FALSE(line.ends_with(' '));
  }
}

TEST_CASE("The words of a command come before its flags, or last if their number is fixed", "[config]") {
  using Words = std::vector<std::string>;
  const struct {
    const char* words;
    Words arguments, taken, left;
    const char* error = "";
  } rows[] = {
      {"RUN OUT", {"a", "b", "--json"}, {"a", "b"}, {"--json"}},
      {"RUN OUT", {"--json", "a", "b"}, {"a", "b"}, {"--json"}},
      {"RUN OUT", {"--out", "x", "a", "b"}, {"a", "b"}, {"--out", "x"}},
      {"RUN OUT", {"--out=x", "a", "b"}, {"a", "b"}, {"--out=x"}},
      {"RUN", {"--out", "x"}, {}, {}, "error[cli.word] RUN: not given\n  hint: p command RUN: words come before flags"},
      {"RUN OUT", {"--out", "x", "a"}, {}, {}, "error[cli.word] RUN: not given"},
      {"RUN OUT", {"a", "--out", "b"}, {}, {}, "error[cli.word] OUT: not given"},
      {"RUN OUT", {"a"}, {}, {}, "error[cli.word] OUT: not given"},
      {"RUN", {"a", "b\x1b", "c"}, {}, {}, "error[cli.word] b\\x1b: unexpected argument (expected RUN)"},
      {"RUN [RUN...]", {"a", "b", "c", "--json"}, {"a", "b", "c"}, {"--json"}},
      {"RUN [RUN...]", {"--json", "a"}, {}, {}, "error[cli.word] RUN: not given"},
      {"RUN", {"--help"}, {}, {"--help"}},
      {"RUN", {"a", "--help", "json"}, {}, {"--help", "json"}},
      {"RUN", {"--completion", "bash"}, {}, {"--completion", "bash"}},
      {"RUN", {"--print_config"}, {}, {"--print_config"}},
      {"RUN", {"a", "--print_config"}, {"a"}, {"--print_config"}},
      {"RUN", {"-"}, {"-"}, {}},
      {"RUN", {}, {}, {}, "error[cli.word] RUN: not given"}};
  for (const auto& row : rows) {
    std::string out;
    bool json = false;
    ConfigParser parser({.name = "p command", .words = row.words});
    parser.add("out", &out);
    parser.add("json", &json);
    Words arguments = row.arguments;
    const auto taken = parser.take_words(arguments);
    CAPTURE(row.words, row.arguments);
    if (*row.error != '\0') {
      REQUIRE_FALSE(taken.ok());
      CHECK_THAT(error_text(taken.status()), Catch::Contains(row.error));
      CHECK(exit_code(taken.status()) == ExitCode::kUsage);
      continue;
    }
    REQUIRE(taken.ok());
    CHECK(*taken == row.taken);
    CHECK(arguments == row.left);
  }
}
