#pragma once
/// Processor time of this process and of others on the machine.

namespace trainkit {

/// Seconds since the start of this process or machine: only differences are meaningful.
struct ProcessorTimes {
  /// Time on a processor, of all threads of this process.
  double used = 0;
  /// Time in which threads of this process could run but waited for a processor. 0 if the kernel does not count it.
  double waited = 0;
  /// Time in which other processes, or other guests of a virtual machine's host, used the processors.
  double others = 0;
  /// Time of all processors of the machine, idle time included.
  double all = 0;
};

/// Reads the times from /proc: about 10 us per thread of this process. Threads that have ended are not in `waited`.
ProcessorTimes processor_times();

}  // namespace trainkit
