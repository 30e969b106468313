#include "logging/processor_times.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <vector>

#include "test_util.h"
#include "trainkit/core/processors.h"

using namespace trainkit;

TEST_CASE("Time of this process, of others and in the queue for a processor is counted", "[logging][processor_times]") {
  std::vector<pid_t> others;
  for (int i = 0; i < available_cpus(); ++i) {
    const pid_t child = fork();
    if (child == 0) {
      while (true) continue;
    }
    REQUIRE(child > 0);
    others.push_back(child);
  }
  const ProcessorTimes before = processor_times();
  const std::clock_t begin = std::clock();
  while (std::clock() - begin < CLOCKS_PER_SEC / 2) continue;  // half a second on a processor that others want too
  const ProcessorTimes after = processor_times();
  for (const pid_t child : others) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  CHECK(after.used - before.used >= 0.5);
  CHECK(after.waited > before.waited);
  CHECK(after.others > before.others);
  CHECK(after.all - before.all >= after.others - before.others);
}
