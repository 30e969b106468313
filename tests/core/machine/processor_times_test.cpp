#include "core/machine/processor_times.h"

#include <ctime>
#include <sstream>

#include "core/machine/other_load.h"
#include "trainkit/core/processors.h"

using namespace trainkit;

TEST_CASE("Time of this process, of others and in the queue for a processor is counted", "[core][processor_times]") {
  const test::OtherLoad load(available_cpus());
  const ProcessorTimes before = processor_times();
  const std::clock_t begin = std::clock();
  while (std::clock() - begin < CLOCKS_PER_SEC / 2) continue;  // half a second on a processor that others want too
  const ProcessorTimes after = processor_times();
  CHECK(after.used - before.used >= 0.5);
  CHECK(after.waited > before.waited);
  CHECK(after.others > before.others);
  CHECK(after.all - before.all >= after.others - before.others);
}

TEST_CASE("Time stolen by the host of a virtual machine is not that of other processes", "[core][processor_times]") {
  std::istringstream file("cpu  100 0 0 500 0 0 0 400 0 0\n");  // user, ..., idle, ..., steal in hundredths of a second
  ProcessorTimes times{.used = 0.75};
  trainkit::detail::add_machine_times(file, times);
  CHECK(times.all == Approx(10));
  CHECK(times.others == Approx(0.25));
  CHECK(times.stolen == Approx(4));
}
