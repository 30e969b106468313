// The official W&B client, offline.
#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "logging/run_log.h"
#include "test_util.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;
using nlohmann::json;

namespace {

bool has_wandb() { return test::python_has("wandb"); }

std::vector<std::string> run_folders(const test::TempDir& dir) {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "wandb")) {
    if (entry.path().filename().string().starts_with("offline-run-")) folders.push_back(entry.path().string());
  }
  return folders;
}

json runs_of(const test::TempDir& dir) {
  const std::string command =
      test::python() + " " TRAINKIT_REFERENCE_DIR "/wandb_history.py " + (dir / "out.json") + " " + dir.path().string();
  REQUIRE(std::system(command.c_str()) == 0);
  return json::parse(std::ifstream(dir / "out.json")).at("runs");
}

/// Restores the environment.
struct Variable {
  Variable(const char* name, const char* value) : name(name), before(test::environment(name)) {
    setenv(name, value, 1);
  }
  ~Variable() { before.empty() ? unsetenv(name) : setenv(name, before.c_str(), 1); }
  const char* name;
  std::string before;
};

}  // namespace

TEST_CASE("The official client records the logged values offline, and nowhere the key", "[logging][wandb]") {
  if (!has_wandb()) TRAINKIT_SKIP("no Python with wandb");
  test::TempDir dir;
  Variable mode("WANDB_MODE", "offline"), key("WANDB_API_KEY", "canary0123456789canary0123456789canary01");
  const WandbOptions options{.dir = dir.path(),
                             .project = "p",
                             .config = {{"lr", "0.001"}},
                             .resume = true,
                             .finish_timeout = std::chrono::minutes(5)};
  {
    auto logger = WandbLogger::create(options).value();
    logger->log({.step = 10, .epoch = 0.5, .values = {{"loss", 2.25}, {"bad", std::nan("")}}, .lr = {1e-3}});
    logger->log({.step = 10, .epoch = 0.5, .split = "val", .values = {{"loss", 2.5}}});
    logger->log({.step = 20, .epoch = 1, .values = {{"loss", 2}}, .gpu_memory_bytes = {5, 6}});
    const absl::Status status = logger->close();
    INFO(error_text(status));
    REQUIRE(status.ok());
  }
  REQUIRE(run_folders(dir).size() == 1);
  const std::string first = run_folders(dir)[0];
  {
    auto logger = WandbLogger::create(options).value();
    logger->log({.step = 30, .epoch = 1.5, .values = {{"loss", 1.75}}});
    REQUIRE(logger->close().ok());
  }
  // Two runs within one second: the client names them NAME and NAME-1, and the second one sorts first as a path.
  auto folders = run_folders(dir);
  REQUIRE(folders.size() == 2);
  const std::string second = folders[folders[0] == first ? 1 : 0];
  std::filesystem::rename(second, first + "-1");
  const json runs = runs_of(dir);
  REQUIRE(runs.size() == 2);
  CHECK(runs[0]["project"] == "p");
  CHECK(runs[0]["config"]["lr"] == "0.001");
  CHECK(runs[0]["exit_code"] == 0);
  CHECK(runs[1]["id"] == runs[0]["id"]);
  const json& history = runs[0]["history"];
  REQUIRE(history.size() == 2);
  CHECK(history[0]["_step"] == 10);
  CHECK(history[0]["train/loss"] == 2.25);
  CHECK(history[0]["train/bad"] == "NaN");
  CHECK(history[0]["train/lr"] == 1e-3);
  CHECK(history[0]["val/loss"] == 2.5);
  CHECK(history[1]["_step"] == 20);
  CHECK(history[1]["machine/gpu_memory_bytes/1"] == 6);
  CHECK(runs[1]["history"][0]["train/loss"] == 1.75);

  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.path())) {
    if (!entry.is_regular_file() || entry.is_symlink()) continue;
    std::ostringstream bytes;
    bytes << std::ifstream(entry.path()).rdbuf();
    INFO(entry.path());
    CHECK(bytes.str().find("canary") == std::string::npos);
  }
}

TEST_CASE("An interpreter without the package is exit code 2 with the install command", "[logging][wandb]") {
  if (test::python().empty()) TRAINKIT_SKIP("no Python");
  test::TempDir dir;
  const std::string bare = dir / "bare.sh";
  std::ofstream(bare) << "#!/bin/sh\nexec " << test::python() << " -S -E \"$@\"\n";
  std::filesystem::permissions(bare, std::filesystem::perms::owner_all);
  std::filesystem::create_directory(dir / "wandb");  // a folder of that name is not the package
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  const absl::Status status = WandbLogger::create({.dir = dir.path(), .python = bare}).status();
  std::filesystem::current_path(before);
  CHECK(exit_code(status) == ExitCode::kUsage);
  CHECK(error_text(status).find("the wandb package is not installed") != std::string::npos);
  CHECK(error_text(status).find("hint: pip install wandb") != std::string::npos);
}

TEST_CASE("Online without credentials is exit code 2, before any connection", "[logging][wandb]") {
  if (!has_wandb()) TRAINKIT_SKIP("no Python with wandb");
  test::TempDir dir;
  Variable home("HOME", dir.path().c_str()), key("WANDB_API_KEY", ""), netrc("NETRC", (dir / "none").c_str());
  const absl::Status status = WandbLogger::create({.dir = dir.path(), .mode = "online"}).status();
  CHECK(exit_code(status) == ExitCode::kUsage);
  CHECK(error_text(status).find("hint: run `wandb login`, or set WANDB_MODE=offline") != std::string::npos);
}

TEST_CASE("The official client records pictures and histograms", "[logging][wandb]") {
  if (!has_wandb()) TRAINKIT_SKIP("no Python with wandb");
  test::TempDir dir;
  auto run = open_run_log({.output_dir = dir.path(),
                           .use_tensorboard = false,
                           .use_wandb = true,
                           .wandb = {.project = "p", .mode = "offline", .finish_timeout = std::chrono::minutes(5)}})
                 .value();
  run->image("val/x", 5, at::zeros({3, 4, 6}));
  run->histogram("w", 5, at::arange(10));
  const absl::Status status = run->close();
  INFO(error_text(status));
  REQUIRE(status.ok());
  const json history = runs_of(dir)[0].at("history")[0];
  CHECK(history.at("_step") == 5);
  CHECK((history.dump().find("image-file") != std::string::npos ||
         history.dump().find("html-file") != std::string::npos));
  CHECK(history.dump().find("histogram") != std::string::npos);
}
