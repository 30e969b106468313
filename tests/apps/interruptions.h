#pragma once
/// Trainers that `trainkit verify-resume` interrupts at random moments, as a user would run it.

#include <catch2/catch.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "program.h"
#include "test_util.h"

namespace trainkit::test {

struct Interruptions {
  std::string signal = "SIGKILL";
  int count = 3;
  int64_t ranks = 1;
  /// Flags that change between starts.
  std::string vary = "num_workers=0:2:4";
};

/// Runs `trainer` uninterrupted and interrupted. `flags` excludes flags that verify-resume sets or varies; --output_dir
/// and its value are removed. Fails the test with the table if anything differs.
inline void verify_resume(const std::string& trainer, const std::vector<std::string>& flags, const TempDir& dir,
                          const Interruptions& wanted) {
  std::vector<std::string> words = {"verify-resume", "--kills", std::to_string(wanted.count), "--signal",
                                    wanted.signal,   "--seed",  std::to_string(wanted.ranks), "--vary",
                                    wanted.vary,     "--"};
  if (wanted.ranks > 1) {
    words.insert(words.end(), {"trainkit", "launch", "--nproc_per_node", std::to_string(wanted.ranks), "--"});
  }
  words.push_back(trainer);
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i] == "--output_dir")
      ++i;
    else
      words.push_back(flags[i]);
  }
  Program program("trainkit", words, dir.path().string(), {.stem = "verify."});
  const int code = program.wait();
  INFO(trainer << " on " << wanted.ranks << " ranks\n" << program.output() << program.errors());
  REQUIRE(code == 0);
  std::cout << trainer << ", " << wanted.ranks << " ranks: " << program.output().substr(0, program.output().find('\n'))
            << std::endl;
}

/// A few kills with one and two ranks, and each other signal; with TRAINKIT_TEST_FULL 200 kills and 100 of each signal.
inline void verify_resume(const std::string& trainer, const std::vector<std::string>& flags, const TempDir& dir,
                          const std::string& vary = "num_workers=0:2:4") {
  const bool full = is_full();
  verify_resume(trainer, flags, dir, {.count = full ? 100 : 3, .vary = vary});
  verify_resume(trainer, flags, dir, {.count = full ? 100 : 2, .ranks = 2, .vary = vary});
  for (const char* signal : {"SIGTERM", "SIGINT", "SIGUSR1"}) {
    verify_resume(trainer, flags, dir, {.signal = signal, .count = full ? 100 : 2, .vary = vary});
  }
}

}  // namespace trainkit::test
