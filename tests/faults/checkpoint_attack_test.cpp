// An attacker replaces entries of the checkpoint folder while a run saves: nothing outside is written or deleted.
#include <ATen/Functions.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "core/files/system_calls.h"
#include "test_util.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
namespace stdfs = std::filesystem;

namespace {

/// Replaces random entries of `folder` by links to `victim` until `stop` is set.
void swap_entries(const std::string& folder, const std::string& victim, std::atomic<bool>& stop,
                  std::atomic<int>& swaps) {
  std::mt19937 random(1);
  std::vector<std::string> names;
  const int directory = open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  for (int i = 0; !stop; ++i) {
    if (SystemCalls::kernel().list(directory, names) != 0 || names.empty()) continue;
    const std::string& name = names[random() % names.size()];
    const std::string moved = ".tmp-moved-" + std::to_string(i);
    if (renameat(directory, name.c_str(), directory, moved.c_str()) != 0) continue;
    if (symlinkat(victim.c_str(), directory, name.c_str()) == 0) ++swaps;
  }
  close(directory);
}

}  // namespace

TEST_CASE("Swapped entries never lead a save outside its folder", "[faults][checkpoint]") {
  test::TempDir dir;
  const std::string victim = dir / "victim", run = dir / "run";
  stdfs::create_directories(victim + "/step-00000001");
  std::ofstream(victim + "/precious") << "precious";
  std::ofstream(victim + "/step-00000001/model.safetensors") << "precious";
  const CheckpointContents contents{.model = {{"w", at::ones({4})}}, .optimizer = {}, .state = {}};
  auto store = CheckpointStore::open(run, {.keep_last = 1}).value();
  std::atomic<bool> stop{false};
  std::atomic<int> swaps{0};
  std::thread attacker([&] { swap_entries(run + "/checkpoints", victim, stop, swaps); });
  for (int64_t step = 1; step <= 300; ++step) (void)store.save(step, contents);  // most of them fail
  stop = true;
  attacker.join();
  CHECK(swaps > 10);
  std::vector<std::string> left;
  for (const auto& entry : stdfs::recursive_directory_iterator(victim)) left.push_back(entry.path().filename());
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{"model.safetensors", "precious", "step-00000001"});
  CHECK(Fs::posix().read_file(victim + "/precious", 100).value() == "precious");
  CHECK(Fs::posix().read_file(victim + "/step-00000001/model.safetensors", 100).value() == "precious");
  // Without the attacker the next save succeeds. The attacker's entries with our names block it until they are removed.
  for (const auto& entry : stdfs::directory_iterator(run + "/checkpoints")) {
    if (entry.is_symlink()) stdfs::remove(entry.path());
  }
  CHECK(store.save(1000, contents) == absl::OkStatus());
  CHECK(store.load(1000).status() == absl::OkStatus());
}
