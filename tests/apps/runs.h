#pragma once
/// The results in a trainer's run folder, for comparison with another run.

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "program.h"
#include "temp_dir.h"
#include "trainkit/logging/sinks.h"

namespace trainkit::test {

/// Exit code and output of a program.
struct Ended {
  int code;
  std::string output, errors;
};

/// Runs a program of build/bin until it ends, with its output in files of `folder`.
inline Ended run_to_end(const std::string& name, const std::vector<std::string>& flags, const std::string& folder) {
  Program program(name, flags, folder);
  const int code = program.wait();
  return {code, program.output(), program.errors()};
}

/// Stops a run in `dir`/run, which would take for ever, by SIGTERM: exit code 143 and no scores. Resumes it: it refuses
/// `changed`, a flag and its value, and ends with the same file `split`.
inline void check_stop(const std::string& program, const std::vector<std::string>& flags, const TempDir& dir,
                       const std::string& split, const std::vector<std::string>& changed) {
  const std::string folder = dir.path().string(), run = dir / "run";
  Program stopped(program, flags, folder);
  while (read_text(run + "/metrics.jsonl").empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  stopped.kill(SIGTERM);
  REQUIRE(stopped.wait() == 143);
  CHECK(stopped.output().find("--resume latest") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(run + "/results/scores.json"));
  const std::string before = read_text(run + "/" + split);
  const auto resume = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--output_dir", run, "--resume", "latest"});
    return run_to_end(program, more, folder);
  };
  const Ended refused = resume(changed);
  CHECK(refused.code == 2);
  CHECK_THAT(refused.errors, Catch::Contains(changed[0] + ": cannot change when a run is continued"));
  const Ended resumed = resume({"--max_steps", "1"});
  INFO(resumed.errors);
  REQUIRE(resumed.code == 0);
  CHECK(read_text(run + "/" + split) == before);
  CHECK(std::filesystem::exists(run + "/results/scores.json"));
}

/// Logged values of each split without times: the loss, or the overall accuracy of a test.
struct Loss {
  std::string split;
  int64_t step;
  double loss;
  bool operator==(const Loss&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Loss& l) {
    return out << l.split << " " << l.step << ": " << l.loss;
  }
};
inline std::vector<Loss> losses(const std::string& folder) {
  std::vector<Loss> list;
  const std::vector<LogRecord> records = read_jsonl(folder + "/metrics.jsonl").value();
  for (const LogRecord& record : records) {
    const double* value = record.find(record.split == "test" ? "oa" : "loss");
    list.push_back({record.split, record.step, value ? *value : -1});
  }
  return list;
}

/// Names and contents of all files in a folder, to see that nothing has changed.
inline std::string folder_contents(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  std::string all;
  for (const std::string& file : files) all += file + "\n" + read_text(file);
  return all;
}

/// Whether a run that could not start left no file in its folder, or only the documented ones about its error.
inline bool has_only_error(const std::string& folder) {
  std::set<std::string> names;
  std::error_code ignored;  // no folder is no file
  for (std::filesystem::recursive_directory_iterator at(folder, ignored), end; !ignored && at != end; ++at) {
    names.insert(at->path().lexically_relative(folder).string());
  }
  return names.empty() || names == std::set<std::string>{"error.json", "report.html"};
}

inline std::string checkpoint_bytes(const std::string& folder, const std::string& step) {
  const std::string at = folder + "/checkpoints/step-" + step;
  return read_text(at + "/model.safetensors") + read_text(at + "/optimizer.safetensors") +
         read_text(at + "/state.json");
}

}  // namespace trainkit::test
