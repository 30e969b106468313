#pragma once
/// Checks programs one after the other in a process of their own, so that a crash or a hang is a failure of one
/// program.

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "spec.h"

namespace trainkit::differential {

class Oracle;

/// A worker process that checks programs, and its Python. Uses no thread of LibTorch itself, so that it can fork.
class Lane {
 public:
  /// An empty `python` checks no program of the oracle "torch". A program that takes `seconds` hangs.
  Lane(std::string python, int seconds);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// As check(), within the time limit; a crash or a hang is a line too.
  std::vector<std::string> check(const Spec& spec);

 private:
  void start();
  void stop();
  [[noreturn]] void work(int requests, int answers);

  std::string python_;
  const int seconds_;
  std::unique_ptr<Oracle> oracle_;
  pid_t worker_ = -1;
  int to_ = -1, from_ = -1;
};

}  // namespace trainkit::differential
