#include "core/machine/processor_times.h"

#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

namespace trainkit {
namespace {

double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Sums the second field of schedstat over the threads: nanoseconds in a run queue. Source: Linux,
/// Documentation/scheduler/sched-stats.rst.
double waited_seconds() {
  double nanoseconds = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/task", error), end; !error && at != end;
       at.increment(error)) {
    double used = 0, waited = 0;
    if (std::ifstream(at->path() / "schedstat") >> used >> waited) nanoseconds += waited;
  }
  return 1e-9 * nanoseconds;
}

/// Time of all processors, the part in which they worked, and the part that the host of a virtual machine took. Source:
/// proc(5).
struct MachineTimes {
  double all = 0, busy = 0, stolen = 0;
};

MachineTimes machine_times(std::istream& file) {
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  file >> name >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
  const double busy = user + nice + system + irq + softirq;
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return {(busy + steal + idle + iowait) / ticks, busy / ticks, steal / ticks};
}

}  // namespace

ProcessorTimes processor_times() {
  ProcessorTimes times{.used = process_seconds(), .waited = waited_seconds()};
  std::ifstream file("/proc/stat");
  detail::add_machine_times(file, times);
  return times;
}

void detail::add_machine_times(std::istream& file, ProcessorTimes& times) {
  const MachineTimes machine = machine_times(file);
  times.all = machine.all;
  times.stolen = machine.stolen;
  times.others = machine.busy - times.used;
}

}  // namespace trainkit
