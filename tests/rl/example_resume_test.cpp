// The examples ppo, sac and grid_game continue with the same bits after kill -9, and reach their scores.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "apps/program.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

namespace fs = std::filesystem;

/// Weights, optimizers and rows of a checkpoint, by file.
std::map<std::string, std::string> tensors_of(const std::string& run, const std::string& checkpoint) {
  std::map<std::string, std::string> files;
  const fs::path folder = fs::path(run) / "checkpoints" / checkpoint;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = fs::relative(entry.path(), folder).string();
    if (entry.is_regular_file() && !name.ends_with(".json") && !name.ends_with(".yaml")) {
      files[name] = read_text(entry.path().string());
    }
  }
  return files;
}

std::vector<std::string> checkpoints_of(const std::string& run) {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(run + "/checkpoints", missing)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Runs an example once uninterrupted and once with kills, each after another checkpoint, and compares the last ones.
void check_resume(const std::string& example, const std::string& length, int kills) {
  const TempDir dir;
  const std::string folder = dir.path().string(), whole = dir / "whole", killed = dir / "killed";
  {
    Program program(example, {length, whole}, folder, {.stem = "whole."});
    const int code = program.wait();
    INFO(program.errors() << program.output());
    REQUIRE(code == 0);
  }
  int done = 0;
  for (;;) {
    const std::vector<std::string> before = checkpoints_of(killed);
    Program program(example, {length, killed}, folder, {.stem = "killed."});
    std::optional<int> code;
    while (!(code = program.poll())) {
      const std::vector<std::string> now = checkpoints_of(killed);
      if (done < kills && !now.empty() && now != before) {
        std::this_thread::sleep_for(std::chrono::milliseconds(7 * (done + 1)));
        program.kill(SIGKILL);
        code = program.wait();
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    INFO(program.errors() << program.output());
    if (code == 0) break;
    REQUIRE(code == 256 + SIGKILL);
    ++done;
  }
  CHECK(done == kills);
  REQUIRE(!checkpoints_of(whole).empty());
  const std::string last = checkpoints_of(whole).back();
  REQUIRE(checkpoints_of(killed).back() == last);
  const auto expected = tensors_of(whole, last), resumed = tensors_of(killed, last);
  CHECK(expected.size() >= 2);
  for (const auto& [name, bytes] : expected) {
    CAPTURE(name, bytes.size());
    CHECK(resumed.contains(name));
    CHECK((resumed.contains(name) && resumed.at(name) == bytes));
  }
}

}  // namespace

TEST_CASE("The example ppo has the bits of an uninterrupted run after kill -9", "[rl][examples]") {
  check_resume("example_ppo", "3", is_full() ? 5 : 2);
}

TEST_CASE("The example sac has the bits of an uninterrupted run after kill -9", "[rl][examples]") {
  check_resume("example_sac", "1350", is_full() ? 5 : 2);
}

TEST_CASE("The example grid_game has the bits of an uninterrupted run after kill -9", "[rl][examples]") {
  check_resume("example_grid_game", "3", is_full() ? 5 : 2);
}

TEST_CASE("The examples ppo, sac and grid_game reach their full scores", "[rl][examples]") {
  if (!is_full()) return;  // the tests example.* check scores of shorter runs
  const TempDir dir;
  for (const char* example : {"example_ppo", "example_sac", "example_grid_game"}) {
    Program program(example, {}, dir.path().string(), {.stem = example});
    const int code = program.wait();  // 1 if the score is missed
    INFO(program.output());
    CHECK(code == 0);
  }
}
