#include <signal.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "read_text.h"
#include "test_util.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;
using namespace std::chrono_literals;

namespace {

/// An executable shell script: a W&B client with arbitrary behaviour.
std::string script(const test::TempDir& dir, const std::string& body) {
  const std::string path = dir / "client.sh";
  std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

/// The rest of the body reads lines from standard input and answers on it, as the real client does.
constexpr char kReady[] = "echo '{\"ready\": true}' >&0\n";

absl::Status wait_for_failure(WandbLogger& logger) {
  for (const auto deadline = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < deadline;) {
    if (absl::Status status = logger.flush(); !status.ok()) return status;
    std::this_thread::sleep_for(1ms);
  }
  return absl::OkStatus();
}

}  // namespace

TEST_CASE("A missing interpreter is exit code 2 with the package to install", "[logging][wandb]") {
  test::TempDir dir;
  const absl::Status status = WandbLogger::create({.dir = dir.path(), .python = "/no/such/python"}).status();
  CHECK(error_text(status) ==
        "trainkit: error[log.wandb] --use_wandb: cannot start Python for the W&B client: No such file or directory "
        "(got '/no/such/python')\n  hint: install python3 and `pip install wandb`, or set TRAINKIT_PYTHON to "
        "an interpreter\n");
  CHECK(exit_code(status) == ExitCode::kUsage);
}

TEST_CASE("A client that exits before it is ready is exit code 2", "[logging][wandb]") {
  test::TempDir dir;
  const absl::Status status = WandbLogger::create({.dir = dir.path(), .python = script(dir, "exit 1")}).status();
  CHECK(exit_code(status) == ExitCode::kUsage);
  CHECK(error_line(status).find("the W&B client did not start") != std::string::npos);
}

TEST_CASE("The client gets the options, then each record and text as a line, then the end", "[logging][wandb]") {
  test::TempDir dir;
  const std::string body = std::string(kReady) + "while read -r line; do printf '%s\\n' \"$line\" >> " + (dir / "got") +
                           "; case $line in *finish*) break;; esac; done\necho '{\"done\": true}' >&0";
  auto logger =
      WandbLogger::create({.dir = dir.path(),
                           .project = "p",
                           .name = "n",
                           .config = {{"lr", "0.001"}, {"wandb_api_key", "canary"}, {"url", "http://u:canary@h"}},
                           .mode = "offline",
                           .python = script(dir, body)})
          .value();
  logger->log({.step = 3, .values = {{"loss", 0.5}}, .lr = {1e-3}});
  logger->log_text({.step = 3, .tag = "sample\n", .text = "a \"b\""});
  CHECK(logger->close().ok());
  logger->log({.step = 4});  // ignored
  const std::string got = test::read_text(dir / "got");
  CHECK(got.find(R"("config":{"lr":"0.001","url":"http://***@h","wandb_api_key":"***"})") != std::string::npos);
  CHECK(got.find(R"("mode":"offline","name":"n","project":"p","resume":"allow"})") != std::string::npos);
  CHECK(
      got.ends_with("\n{\"series\":{\"train/epoch\":0.0,\"train/loss\":0.5,\"train/lr\":0.001},\"step\":3}\n"
                    "{\"step\":3,\"tag\":\"sample\\\\x0a\",\"text\":\"a \\\"b\\\"\"}\n{\"finish\":true}\n"));
}

TEST_CASE("The reason of a client's failure is reported once, and later records are dropped", "[logging][wandb]") {
  test::TempDir dir;
  const std::string body = std::string(kReady) + "echo '{\"failed\": \"CommError: api_key=canary\"}' >&0\nsleep 60";
  auto logger = WandbLogger::create({.dir = dir.path(), .python = script(dir, body), .finish_timeout = 10s}).value();
  const absl::Status status = wait_for_failure(*logger);
  CHECK(error_text(status) ==
        "trainkit: error[log.wandb] W&B: CommError: api_key=***\n  hint: training continues without "
        "W&B; see " +
            (dir / "wandb/client.log") + "\n");
  logger->log({.step = 1});
  CHECK(logger->close() == status);  // does not wait for the client, which is still running
}

TEST_CASE("A client that dies is a failure and raises no SIGPIPE", "[logging][wandb]") {
  test::TempDir dir;
  auto logger = WandbLogger::create({.dir = dir.path(), .python = script(dir, kReady)}).value();
  for (int step = 0; step < 1000; ++step) logger->log({.step = step});
  CHECK(error_line(wait_for_failure(*logger)) == "error[log.wandb] the W&B client ended");
  CHECK(logger->optional());
}

TEST_CASE("A client that reads nothing blocks nothing and takes limited memory", "[logging][wandb]") {
  test::TempDir dir;
  auto logger =
      WandbLogger::create(
          {.dir = dir.path(), .python = script(dir, std::string(kReady) + "exec sleep 60"), .finish_timeout = 1ms})
          .value();
  const LogText page{.step = 1, .tag = "page", .text = std::string(100'000, 'x')};
  for (int i = 0; i < 100; ++i) logger->log_text(page);  // 10 MB
  CHECK(error_line(logger->flush()).find("is too slow") != std::string::npos);
}

TEST_CASE("A client that ends after the logger leaves no zombie", "[logging][wandb]") {
  test::TempDir dir;
  const std::string body = std::string(kReady) + "echo $$ > " + (dir / "pid") + "\nread -r line\nread -r line\n" +
                           "echo '{\"done\": true}' >&0\nsleep 0.2";
  CHECK(WandbLogger::create({.dir = dir.path(), .python = script(dir, body)}).value()->close().ok());
  const pid_t client = std::stoi(test::read_text(dir / "pid"));
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (::kill(client, 0) == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
  CHECK(::kill(client, 0) != 0);  // a zombie still has its number
}

TEST_CASE("A client that does not finish in time continues by itself", "[logging][wandb]") {
  test::TempDir dir;
  auto logger =
      WandbLogger::create(
          {.dir = dir.path(), .python = script(dir, std::string(kReady) + "exec sleep 60"), .finish_timeout = 10ms})
          .value();
  CHECK(error_line(logger->close()).find("continues in the background") != std::string::npos);
}

TEST_CASE("A resumed run keeps its id and a new one gets another", "[logging][wandb]") {
  test::TempDir dir;
  const auto id_of = [&](bool resume) {
    const std::string body =
        "read -r line; printf '%s' \"$line\" > " + (dir / "got") + "\n" + kReady + "echo '{\"done\": true}' >&0";
    CHECK(
        WandbLogger::create({.dir = dir.path(), .resume = resume, .python = script(dir, body)}).value()->close().ok());
    const std::string got = test::read_text(dir / "got");
    return got.substr(got.find("\"id\":\"") + 6, 8);
  };
  const std::string first = id_of(true), resumed = id_of(true), fresh = id_of(false);
  CHECK(first.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz") == std::string::npos);
  CHECK(resumed == first);
  CHECK(fresh != first);
  CHECK(id_of(true) == fresh);
}

TEST_CASE("A folder that cannot be written is exit code 6", "[logging][wandb]") {
  test::TempDir dir;
  std::ofstream(dir / "file") << "";
  CHECK(exit_code(WandbLogger::create({.dir = dir / "file"}).status()) == ExitCode::kStorage);
}
