#pragma once
/// A run folder with checkpoints, for tests that read and change its files.

#include <torch/torch.h>

#include <fstream>
#include <string>

#include "test_util.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::test {

inline CheckpointContents contents_of(int64_t step) {
  const auto value = static_cast<double>(step);
  return {.model = {{"w", torch::full({3, 2}, value)}},
          .optimizer = {{"state.w.exp_avg", torch::full({3, 2}, value / 2)}},
          .state = {{"step", step}, {"generator", torch::arange(16, torch::kByte)}}};
}

inline std::string name_of(int64_t step) { return (step < 10 ? "step-0000000" : "step-000000") + std::to_string(step); }

inline std::string read(const std::string& path) { return Fs::posix().read_file(path, 1 << 20).value(); }
inline void write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

inline void flip(const std::string& path, double where = 0.5) {
  std::string bytes = read(path);
  bytes.at(static_cast<size_t>(where * static_cast<double>(bytes.size()))) ^= 1;
  write(path, bytes);
}

/// A run folder with checkpoints of steps 10, 20 and 30.
class Run {
 public:
  Run() {
    auto store = open();
    for (const int64_t step : {10, 20, 30}) REQUIRE(store.save(step, contents_of(step)) == absl::OkStatus());
  }
  CheckpointStore open(int keep_last = 0) const {
    return CheckpointStore::open(output(), {.keep_last = keep_last}).value();
  }
  std::string output() const { return dir_ / "run"; }
  std::string folder() const { return dir_ / "run/checkpoints"; }
  std::string path(int64_t step, const std::string& file = {}) const {
    return folder() + "/" + name_of(step) + (file.empty() ? "" : "/" + file);
  }
  const TempDir& dir() const { return dir_; }

 private:
  TempDir dir_;
};

}  // namespace trainkit::test
