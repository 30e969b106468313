#include "app/program/waiting.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace trainkit::detail {

Waiting::Waiting(std::string what)
    : what_(std::move(what)), thread_([this](const std::stop_token& stop) { report(stop); }) {}

void Waiting::report(const std::stop_token& stop) {
  const bool is_terminal = isatty(STDERR_FILENO) == 1;
  std::unique_lock lock(mutex_);
  for (int seconds = 1;; ++seconds) {
    stopped_.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
    if (stop.stop_requested()) {
      if (is_terminal && seconds > 1) std::fputs("\r\x1b[K", stderr);
      return;
    }
    if (!is_terminal && seconds > 1) continue;
    std::fputs((is_terminal ? fmt::format("\r{}: {} s\x1b[K", what_, seconds) : what_ + " ...\n").c_str(), stderr);
    std::fflush(stderr);
  }
}

}  // namespace trainkit::detail
