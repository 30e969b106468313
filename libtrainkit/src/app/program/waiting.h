#pragma once
/// Reports on stderr that a program works on something for long.

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace trainkit::detail {

/// Reports `what` from the first second of its lifetime on: on a terminal with the seconds, else as one line.
class Waiting {
 public:
  explicit Waiting(std::string what);

 private:
  void report(const std::stop_token& stop);

  const std::string what_;
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  std::jthread thread_;
};

}  // namespace trainkit::detail
