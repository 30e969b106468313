#pragma once
/// Processor time of this process and of others on the machine.

#include <istream>

namespace trainkit {

/// Seconds since the start of this process or machine: only differences are meaningful.
struct ProcessorTimes {
  /// Time on a processor, of all threads of this process.
  double used = 0;
  /// Time in which threads of this process could run but waited for a processor. 0 if the kernel does not count it.
  double waited = 0;
  /// Time in which other processes used the processors.
  double others = 0;
  /// Time in which the host of a virtual machine gave its processors to others. 0 on a real machine.
  double stolen = 0;
  /// Time of all processors of the machine, idle time included.
  double all = 0;
};

/// Reads the times from /proc: about 10 us per thread of this process. Threads that have ended are not in `waited`.
ProcessorTimes processor_times();

namespace detail {
/// Sets `others`, `stolen` and `all` from the text of /proc/stat and `used`.
void add_machine_times(std::istream& file, ProcessorTimes& times);
}  // namespace detail

}  // namespace trainkit
