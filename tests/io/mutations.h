#pragma once
/// Damaged files by number, and child processes that read them.

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <vector>

#include "test_util.h"
#include "trainkit/core/random.h"

namespace trainkit::test {

/// `bytes` with one to four changes behind `first`: a bit, a byte, eight bytes, a copy of others. The same for a
/// number.
inline std::string mutated(std::string bytes, int number, size_t first = 0) {
  RandomStream random(hash_key(7, number));
  const auto place = [&] { return first + random.below(bytes.size() - first); };
  for (uint64_t edits = 1 + random.below(4); edits > 0; --edits) {
    const size_t at = place();
    switch (random.below(5)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 2:
        bytes.replace(at, std::min<size_t>(8, bytes.size() - at),
                      std::string(std::min<size_t>(8, bytes.size() - at), random.below(2) ? '\xff' : '\0'));
        break;
      case 3:
        bytes[at] = static_cast<char>(bytes[at] + (random.below(2) ? 1 : -1));
        break;
      default: {
        const size_t from = place(), size = std::min<size_t>(8, bytes.size() - std::max(at, from));
        bytes.replace(at, size, std::string(bytes, from, size));
      }
    }
  }
  return bytes;
}

/// A T in memory that child processes share.
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

/// Calls `work(number)` for each number below `count` in child processes. The numbers of those that ended their
/// process, or took longer than `seconds`.
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
