#pragma once
#include <cstdint>
#include <filesystem>
#include <iterator>

namespace trainkit::test {

/// Threads of this process.
inline int64_t thread_count() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

}  // namespace trainkit::test
