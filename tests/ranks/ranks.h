#pragma once
/// The ranks of one job as child processes, started with the environment of a launcher.

#include <algorithm>
#include <functional>
#include <memory>
#include <string_view>

#include "apps/program.h"
#include "free_port.h"
#include "test_util.h"

namespace trainkit::test {

/// This environment without a launcher's variables, and with one thread per rank.
inline std::vector<std::string> base_environment() {
  std::vector<std::string> variables = {"OMP_NUM_THREADS=1"};
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool launcher = name == "RANK" || name == "WORLD_SIZE" || name == "LOCAL_RANK" ||
                          name == "LOCAL_WORLD_SIZE" || name.starts_with("MASTER_") ||
                          name.starts_with("TORCHELASTIC_") || name.starts_with("SLURM_") || name.starts_with("OMPI_");
    if (!launcher && name != "OMP_NUM_THREADS") variables.emplace_back(text);
  }
  return variables;
}

struct RanksOptions {
  int64_t world = 2;
  std::string program = "trainkit-transformer";
  /// false: the processes get no launcher variables.
  bool launched = true;
  /// Flags of every rank, and of one rank.
  std::vector<std::string> flags = {};
  std::function<std::vector<std::string>(int64_t rank)> more = {};
  /// NAME=value, overrides the default environment of a rank; an empty value removes it.
  std::function<std::vector<std::string>(int64_t rank)> environment = {};
  /// Prefix of the command: {"ip", "netns", "exec", ...}.
  std::function<std::vector<std::string>(int64_t rank)> wrapper = {};
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = free_port();
  /// Ranks not started at once, but by start().
  std::vector<int64_t> late = {};
};

/// Exit code and output of a rank.
struct RankEnd {
  static constexpr int kHung = -1;
  int code = kHung;
  std::chrono::steady_clock::time_point at = {};
  std::string output = {}, errors = {};
};

class RankJob {
 public:
  RankJob(RanksOptions options, std::string folder) : options_(std::move(options)), folder_(std::move(folder)) {
    programs_.resize(static_cast<size_t>(options_.world));
    for (int64_t rank = 0; rank < options_.world; ++rank) {
      if (std::find(options_.late.begin(), options_.late.end(), rank) == options_.late.end()) start(rank);
    }
  }

  void start(int64_t rank) {
    std::vector<std::string> arguments = options_.wrapper ? options_.wrapper(rank) : std::vector<std::string>{};
    std::string name = options_.program;
    if (!arguments.empty()) {
      arguments.push_back(name.starts_with('/') ? name : std::string(TRAINKIT_BIN_DIR) + "/" + name);
      name = arguments.front();  // a path
      arguments.erase(arguments.begin());
    }
    arguments.insert(arguments.end(), options_.flags.begin(), options_.flags.end());
    if (options_.more) {
      for (std::string& flag : options_.more(rank)) arguments.push_back(std::move(flag));
    }
    programs_[static_cast<size_t>(rank)] = std::make_unique<Program>(
        name, arguments, folder_,
        ProgramOptions{.environment = environment_of(rank), .stem = "rank" + std::to_string(rank) + "."});
  }

  Program& operator[](int64_t rank) { return *programs_[static_cast<size_t>(rank)]; }

  /// Waits until all have ended. Ranks still running at the deadline are killed and get the code kHung.
  std::vector<RankEnd> wait(std::chrono::seconds deadline = std::chrono::seconds(120)) {
    std::vector<RankEnd> ends(programs_.size());
    const auto give_up = std::chrono::steady_clock::now() + deadline;
    for (size_t left = programs_.size(); left > 0;) {
      left = 0;
      for (size_t rank = 0; rank < programs_.size(); ++rank) {
        if (ends[rank].at != std::chrono::steady_clock::time_point{}) continue;
        if (const auto code = programs_[rank]->poll()) {
          ends[rank].code = *code;
          ends[rank].at = std::chrono::steady_clock::now();
        } else {
          ++left;
        }
      }
      if (left == 0) break;
      if (std::chrono::steady_clock::now() > give_up) {
        for (auto& program : programs_) program->kill(SIGKILL);  // SIGKILL ends a suspended process too
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      if (programs_[rank]->pid() > 0) programs_[rank]->wait();
      ends[rank].output = programs_[rank]->output();
      ends[rank].errors = programs_[rank]->errors();
    }
    return ends;
  }

  /// Kills rank 0 when the run in `folder` has its first checkpoint, and waits until all have ended.
  void kill_after_checkpoint(const std::string& folder) {
    const auto start = std::chrono::steady_clock::now();
    while (!std::filesystem::exists(folder + "/checkpoints/latest")) {
      REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    programs_[0]->kill(SIGKILL);
    wait();
  }

 private:
  std::vector<std::string> environment_of(int64_t rank) const {
    std::vector<std::string> variables = base_environment();
    const auto number = [](int64_t value) { return std::to_string(value); };
    if (!options_.launched) return variables;
    for (auto& entry : std::vector<std::string>{
             "RANK=" + number(rank), "LOCAL_RANK=" + number(rank), "WORLD_SIZE=" + number(options_.world),
             "LOCAL_WORLD_SIZE=" + number(options_.world), "MASTER_ADDR=" + options_.master_addr,
             "MASTER_PORT=" + number(options_.master_port)}) {
      variables.push_back(entry);
    }
    if (!options_.environment) return variables;
    for (const std::string& entry : options_.environment(rank)) {
      const std::string name = entry.substr(0, entry.find('=') + 1);
      std::erase_if(variables, [&](const std::string& other) { return other.starts_with(name); });
      if (entry.size() > name.size()) variables.push_back(entry);
    }
    return variables;
  }

  RanksOptions options_;
  std::string folder_;
  std::vector<std::unique_ptr<Program>> programs_;
};

/// The results of all ranks in one text, for INFO.
inline std::string describe(const std::vector<RankEnd>& ends) {
  std::string text;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    text += "rank " + std::to_string(rank) + ": " +
            (ends[rank].code == RankEnd::kHung ? "HUNG" : "exit " + std::to_string(ends[rank].code)) + "\n" +
            ends[rank].errors;
  }
  return text;
}

/// Requires that every rank has ended with `code`.
inline void require_done(const std::vector<RankEnd>& ends, int code = 0) {
  INFO(describe(ends));
  for (const RankEnd& end : ends) REQUIRE(end.code == code);
}

}  // namespace trainkit::test
