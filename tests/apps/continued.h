#pragma once
/// A run that is continued from its folder alone.

#include <ATen/ops/equal.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runs.h"
#include "test_util.h"
#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

namespace trainkit::test {

/// The bytes of each file below `folder`, and the time of its last change.
inline std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const auto changed = entry.last_write_time().time_since_epoch().count();
    files[entry.path().string()] = std::to_string(changed) + " " + read_text(entry.path().string());
  }
  return files;
}

struct Continued {
  std::string program;
  /// Flags of a run of 6 steps to `run`, and of one of 9 steps to `whole`, which are otherwise equal.
  std::vector<std::string> flags, whole_flags;
  std::string run, whole;
  /// A flag that a continued run cannot change, with another value.
  std::vector<std::string> fixed;
  /// Replaces the data by other data of the same size.
  std::function<void()> change_data;
};

/// Continues a run in the ways that a user would try; the folder changes only if the run really continues.
inline void check_continued(const Continued& test, const TempDir& dir) {
  const auto start = [&](std::vector<std::string> flags) {
    return run_to_end(test.program, flags, dir.path().string());
  };
  const auto resume = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--output_dir", test.run, "--resume", "latest"});
    return start(more);
  };
  const Ended first = start(test.flags);
  INFO(first.errors);
  REQUIRE(first.code == 0);
  const auto files = files_of(test.run);

  const Ended done = resume({});
  INFO(done.errors);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("is finished; to continue it, raise --epochs or --max_steps"));
  CHECK(files_of(test.run) == files);

  const Ended refused = resume(test.fixed);
  CHECK(refused.code == 2);
  CHECK_THAT(refused.errors,
             Catch::Contains("[cli.fixed] " + test.fixed[0] + ": cannot change when a run is continued"));
  CHECK(files_of(test.run) == files);

  const std::string weights = test.run + "/checkpoints/step-00000006/model.safetensors";
  std::string damaged = read_text(weights);
  damaged.back() ^= 1;
  std::filesystem::copy_file(weights, dir / "weights");
  std::ofstream(weights, std::ios::binary) << damaged;
  const auto damaged_files = files_of(test.run);
  const Ended failed = resume({"--max_steps", "9"});
  CHECK(failed.code == 5);
  CHECK_THAT(failed.errors, Catch::Contains("model.safetensors"));
  CHECK(files_of(test.run) == damaged_files);
  std::filesystem::copy_file(dir / "weights", weights, std::filesystem::copy_options::overwrite_existing);

  const Ended continued = resume({"--max_steps", "9"});
  INFO(continued.errors);
  CHECK(continued.code == 0);
  CHECK_THAT(continued.output, Catch::Contains("changed max_steps: 6 -> 9 (--max_steps)"));
  REQUIRE(start(test.whole_flags).code == 0);
  CHECK(checkpoint_bytes(test.run, "00000009") == checkpoint_bytes(test.whole, "00000009"));

  const auto whole_files = files_of(test.run);
  test.change_data();
  const Ended other = resume({"--max_steps", "12"});
  CHECK(other.code == 4);
  CHECK_THAT(other.errors, Catch::Contains("error[data.changed]") && Catch::Contains("was trained on other data"));
  CHECK(files_of(test.run) == whole_files);
}

/// Tensors of a safetensors file whose names begin with `prefix`, without it.
inline std::map<std::string, at::Tensor> tensors_of(const std::string& path, const std::string& prefix = "") {
  std::map<std::string, at::Tensor> tensors;
  const NamedTensors all = SafetensorsFile::open(path)->tensors().value();
  for (const auto& [name, tensor] : all) {
    if (name.starts_with(prefix)) tensors[name.substr(prefix.size())] = tensor;
  }
  return tensors;
}

/// Checks that the best weights of a run with --ema are the averages of its checkpoint, not the trained weights, and
/// that `use`, which returns the output of a command on a run, computes with them. The checkpoint of the best step must
/// exist.
inline void check_average(const std::string& run, const std::function<std::string(const std::string& run)>& use) {
  const std::string best = run + "/best.safetensors", step = SafetensorsFile::open(best)->metadata().at("step");
  const std::string checkpoint = run + "/checkpoints/step-" + std::string(8 - step.size(), '0') + step;
  const auto kept = tensors_of(best), averages = tensors_of(checkpoint + "/model.safetensors");
  const auto trained = tensors_of(checkpoint + "/optimizer.safetensors", "live.");
  REQUIRE(!trained.empty());
  NamedTensors plain;
  for (const auto& [name, tensor] : kept) {
    INFO(name);
    CHECK(at::equal(tensor, averages.at(name)));
    plain.emplace_back(name, trained.contains(name) ? trained.at(name) : tensor);
    if (trained.contains(name)) CHECK_FALSE(at::equal(tensor, trained.at(name)));
  }
  const std::string expected = use(run);
  CHECK(use(checkpoint) == expected);
  std::filesystem::copy(run, run + "-plain", std::filesystem::copy_options::recursive);
  REQUIRE(save_safetensors(Fs::posix(), run + "-plain/best.safetensors", plain, {{"step", step}}).ok());
  CHECK(use(run + "-plain") != expected);
}

}  // namespace trainkit::test
