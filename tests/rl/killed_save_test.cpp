// A process that is killed while it writes the rows of a buffer into a checkpoint.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>

#include "examples/example_runs.h"
#include "ranks/ranks.h"
#include "temp_dir.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

namespace fs = std::filesystem;

constexpr const char* kProgram = "replay_until_killed";
constexpr int64_t kSteps = 8;

/// Names in the folder of checkpoints that are not checkpoints.
std::vector<std::string> remains(const std::string& run) {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(run + "/checkpoints", missing)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-") && name != "latest") names.push_back(name);
  }
  return names;
}

/// Whether a checkpoint that is not among `before` is being written: rows are there, but not the list of files.
bool is_writing(const std::string& run, const std::vector<std::string>& before) {
  for (const std::string& name : remains(run)) {
    if (std::find(before.begin(), before.end(), name) != before.end()) continue;
    const fs::path folder = fs::path(run) / "checkpoints" / name;
    std::error_code missing;
    if (fs::exists(folder / "source-0000.rows", missing) && !fs::exists(folder / "manifest.json", missing)) return true;
  }
  return false;
}

std::string rows_of(const std::string& run) {
  return read_text(run + "/checkpoints/" + latest(run) + "/source-0000.rows");
}

}  // namespace

TEST_CASE("A run that is killed while it writes rows continues from the checkpoint before, and leaves nothing behind",
          "[rl][resume]") {
  const TempDir dir;
  const std::string folder = dir.path().string(), whole = dir / "whole", killed = dir / "killed";
  const auto start = [&](const std::string& run) {
    return std::make_unique<Program>(kProgram, std::vector<std::string>{run, std::to_string(kSteps)}, folder,
                                     ProgramOptions{.environment = base_environment()});
  };
  REQUIRE(start(whole)->wait() == 0);
  REQUIRE(last_saved(whole) == kSteps);

  const int kills = is_full() ? 20 : 2;
  int done = 0;
  for (int64_t saved = 0;;) {
    const std::vector<std::string> before = remains(killed);
    const auto program = start(killed);
    std::optional<int> code;
    while (!(code = program->poll())) {
      // A checkpoint before the one that is being written, so that there is something to resume.
      if (done < kills && last_saved(killed) > 0 && is_writing(killed, before)) {
        program->kill(SIGKILL);
        code = program->wait();
        break;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    INFO(program->errors() << program->output());
    CHECK(program->output().starts_with("resumed at " + std::to_string(saved) + "\n"));
    saved = last_saved(killed);
    if (code == 0) break;
    REQUIRE(code == 256 + SIGKILL);
    if (is_writing(killed, before)) ++done;  // else the save has ended before the signal came
  }
  CHECK(done == kills);
  CHECK(last_saved(killed) == kSteps);
  CHECK(remains(killed).empty());
  CHECK(final_bytes(killed) == final_bytes(whole));
  CHECK((rows_of(killed).size() > 256 * 64 * 1024 && rows_of(killed) == rows_of(whole)));
}
