#pragma once
/// Other processes that use the processors during a test.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "test_util.h"

namespace trainkit::test {

/// Processes that each use a processor; they end with this object.
class OtherLoad {
 public:
  explicit OtherLoad(int count) {
    for (int i = 0; i < count; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) asm volatile("");
      }
      REQUIRE(child > 0);
      children_.push_back(child);
    }
  }
  ~OtherLoad() {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  OtherLoad(const OtherLoad&) = delete;
  OtherLoad& operator=(const OtherLoad&) = delete;

 private:
  std::vector<pid_t> children_;
};

}  // namespace trainkit::test
