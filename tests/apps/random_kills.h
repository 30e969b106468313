#pragma once
/// A trainer that is killed at random moments, and goes on from its last checkpoint each time.

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "program.h"

namespace trainkit::test {

class RandomKills {
 public:
  /// `whole_seconds`: what a run takes that nobody kills.
  RandomKills(int wanted, unsigned seed, double whole_seconds)
      : wanted_(wanted), random_(seed), whole_seconds_(whole_seconds) {}

  bool done() const { return count_ >= wanted_; }
  int count() const { return count_; }

  /// Runs a trainer to its end, which may take many runs. `flags` name `output_dir`; what it prints goes to `folder`.
  /// `earliest`: the share of whole_seconds before which no run is killed.
  void run_to_end(const std::string& trainer, const std::vector<std::string>& flags, const std::string& output_dir,
                  const std::string& folder, double earliest = 0) {
    for (int code = -1; code != 0;) {
      std::vector<std::string> all = flags;
      if (std::filesystem::exists(output_dir + "/checkpoints/latest")) all.insert(all.end(), {"--resume", "latest"});
      // A machine that is less busy by now ends the run before the moment comes: then the next moment is sooner.
      Program program(trainer, all, folder);
      const auto begin = std::chrono::steady_clock::now();
      const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      };
      const double moment = std::uniform_real_distribution<double>(earliest, 1)(random_) * whole_seconds_;
      std::optional<int> ended;
      while (!done() && !(ended = program.poll()) && seconds() < moment) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      if (ended) whole_seconds_ = std::min(whole_seconds_, seconds());
      if (!ended && !done()) program.kill(SIGKILL);
      code = ended ? *ended : program.wait();
      INFO(program.errors());
      REQUIRE((code == 0 || code == 256 + SIGKILL));
      count_ += code != 0;
    }
  }

 private:
  int wanted_;
  std::mt19937 random_;
  double whole_seconds_;
  int count_ = 0;
};

}  // namespace trainkit::test
