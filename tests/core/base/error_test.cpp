#include "trainkit/core/error.h"

#include "test_util.h"

using namespace trainkit;

TEST_CASE("An error is one line with location, field, problem, value and rule", "[core][error]") {
  const absl::Status status = to_status({.exit_code = ExitCode::kUsage,
                                         .id = "cli.value",
                                         .field = "--batch-size",
                                         .problem = "not a positive integer",
                                         .got = "0",
                                         .expected = "1..1048576"});
  CHECK(error_line(status) == "error[cli.value] --batch-size: not a positive integer (got '0', expected 1..1048576)");
  CHECK(exit_code(status) == ExitCode::kUsage);
  CHECK(error_of(status)->got == "0");
  CHECK(error_text(status) == "trainkit: " + error_line(status) + "\n");
}

TEST_CASE("A hint is printed on a second line", "[core][error]") {
  const absl::Status status = to_status({.exit_code = ExitCode::kConfig,
                                         .id = "config.key",
                                         .where = "run.yaml:12:5",
                                         .field = "epoch",
                                         .problem = "unknown key",
                                         .hint = "did you mean 'epochs'?"});
  CHECK(error_text(status) ==
        "trainkit: error[config.key] run.yaml:12:5: epoch: unknown key\n  hint: did you mean 'epochs'?\n");
}

TEST_CASE("An error line stays under 400 bytes, on one line, in printable UTF-8", "[core][error]") {
  const std::string hostile = "\x1b[31m\n\xff" + std::string(1 << 20, 'x');
  const absl::Status status = to_status({.exit_code = ExitCode::kData,
                                         .id = "data.tokens",
                                         .where = hostile,
                                         .field = hostile,
                                         .problem = hostile,
                                         .got = hostile,
                                         .expected = hostile});
  const std::string line = error_line(status);
  CHECK(line.size() <= 400);
  CHECK(line.find('\n') == std::string::npos);
  CHECK(line.find('\x1b') == std::string::npos);
  CHECK(line.find("\\x1b[31m\\x0a\\xff") != std::string::npos);
  CHECK(line.find("(got '") != std::string::npos);
}

TEST_CASE("Secrets in an error are masked", "[core][error]") {
  const auto line = [](const std::string& field, const std::string& got) {
    return error_line(to_status({.id = "cli.value", .field = field, .problem = "bad", .got = got}));
  };
  CHECK(line("WANDB_API_KEY", "abc123").find("abc123") == std::string::npos);
  CHECK(line("url", "https://me:abc123@host/x").find("abc123") == std::string::npos);
  CHECK(line("url", "https://host/x").find("host/x") != std::string::npos);
}

TEST_CASE("Text direction marks and invalid UTF-8 are escaped; other text is kept", "[core][error]") {
  CHECK(escape_text("naïve 漢字") == "naïve 漢字");
  CHECK(escape_text("a\u202eb") == "a\\u{202e}b");
  CHECK(escape_text("\xc0\x80") == "\\xc0\\x80");
  CHECK(escape_text("\xed\xa0\x80") == "\\xed\\xa0\\x80");
}

TEST_CASE("A Status without an exit code of ours still maps to an exit code and a line", "[core][error]") {
  CHECK(exit_code(absl::ResourceExhaustedError("x")) == ExitCode::kOutOfMemory);
  CHECK(exit_code(absl::InternalError("x")) == ExitCode::kBug);
  CHECK(error_line(absl::InternalError("boom")) == "error[bug.internal] boom");
}

TEST_CASE("An error with exit code 0 or an unknown one is not OK and keeps its fields", "[core][error]") {
  for (const absl::Status& status :
       {to_status({.exit_code = ExitCode::kOk, .id = "run.failed", .problem = "no output"}),
        to_status({.exit_code = ExitCode::kOk, .id = "run.failed", .problem = "no output"}, absl::StatusCode::kOk),
        to_status({.exit_code = ExitCode::kBug, .id = "run.failed", .problem = "no output"}, absl::StatusCode::kOk)}) {
    CHECK(status.code() == absl::StatusCode::kInternal);
    CHECK(exit_code(status) == ExitCode::kBug);
    CHECK(error_line(status) == "error[run.failed] no output");
  }
  const absl::Status stopped = to_status({.exit_code = static_cast<ExitCode>(143), .problem = "stopped"});
  CHECK_FALSE(stopped.ok());
  CHECK(static_cast<int>(exit_code(stopped)) == 143);
}

TEST_CASE("An error keeps every byte of its fields", "[core][error]") {
  const std::string bytes("a\n\0\xff\\n\"\x1b", 8);
  const auto error = error_of(to_status(
      {.id = bytes, .where = bytes, .field = "", .problem = bytes, .got = "\n", .expected = bytes, .hint = "\n\n"}));
  REQUIRE(error);
  for (const std::string& field : {error->id, error->where, error->problem, error->expected}) CHECK(field == bytes);
  CHECK(error->field.empty());
  CHECK(error->got == "\n");
  CHECK(error->hint == "\n\n");
}

TEST_CASE("The nearest name is suggested, a far one is not", "[core][error]") {
  const std::vector<std::string> names = {"epochs", "batch_size", "lr"};
  CHECK(nearest_name("epoch", names) == "epochs");
  CHECK(nearest_name("bacth_size", names) == "batch_size");
  CHECK(nearest_name("zzzzzz", names).empty());
}
