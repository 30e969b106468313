#pragma once
/// Child processes that read damaged files.

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <vector>

#include "mutated.h"
#include "test_util.h"

namespace trainkit::test {

/// A T in memory shared with child processes.
template <class T>
class Shared {
 public:
  Shared() {
    void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    value_ = new (memory) T;
  }
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

/// Calls `work(number)` for each number below `count` in child processes. Returns the numbers whose process crashed or
/// took longer than `seconds`.
template <class Work>
std::vector<int> ended_by(int count, Work work, unsigned seconds = 20) {
  const Shared<std::atomic<int>> shared;
  std::atomic<int>& next = *shared;
  std::vector<int> numbers;
  while (next < count) {
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit no_core{0, 0};
      ::setrlimit(RLIMIT_CORE, &no_core);
      while (next < count) {
        ::alarm(seconds);
        work(next.load());
        ++next;
      }
      ::_exit(0);
    }
    int how = 0;
    REQUIRE(::waitpid(child, &how, 0) == child);
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) numbers.push_back(next++);
  }
  return numbers;
}

}  // namespace trainkit::test
