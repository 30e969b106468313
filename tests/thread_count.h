#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <thread>

namespace trainkit::test {

/// Threads of this process.
inline int64_t thread_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

/// The same once it has not changed for 50 ms: a thread that has ended, and was joined, stays in /proc for a moment.
inline int64_t settled_thread_count() {
  int64_t count = thread_count();
  for (int same = 0; same < 50;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int64_t now = thread_count();
    same = now == count ? same + 1 : 0;
    count = now;
  }
  return count;
}

}  // namespace trainkit::test
