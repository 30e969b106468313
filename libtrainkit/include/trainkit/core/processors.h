#pragma once
/// How many processors there are for this process, and how to share them.
///
/// Loader workers and LibTorch's own threads (at::set_num_threads) draw on the same processors: where both take all of
/// them, each waits for the other, and a gather or a small matrix product can lose a factor of ten. Share them:
///
///   const int workers = suggest_num_workers(devices);
///   at::set_num_threads(suggest_intra_op_threads(workers));
///
/// A worker itself always runs LibTorch with one thread.

#include <string>

#include <cstdint>

namespace trainkit {

/// Processors that this process may use: the affinity mask (taskset, numactl) and the quota of its control group
/// (containers), rounded up. At least 1. Reads a few files of /proc and /sys: call it once.
int available_cpus();

/// Workers that a loader should have in each of `ranks` processes on this machine: min(cpus / 2, 8, 2 * devices) shared
/// among the ranks, at least 1. `devices` are those of the whole machine, 1 for the CPU alone.
int suggest_num_workers(int devices = 1, int ranks = 1, int cpus = available_cpus());

/// What reading rows costs a loader's worker.
enum class ReadCost {
  kCopy,   ///< Rows are copied from memory or a mapped file: a worker idles nearly all the time.
  kDecode  ///< Rows are decoded or transformed: a worker is busy.
};

/// Threads for LibTorch's own loops beside `num_workers` workers in each of `ranks` processes, at least 1: the
/// processors that are left, or all of them where workers only copy.
int suggest_intra_op_threads(int num_workers, ReadCost cost = ReadCost::kDecode, int ranks = 1);

namespace detail {
/// The quota, in processors, of the control group that `membership` (the text of /proc/self/cgroup) names, in the tree
/// at `root`; 0 if there is none. Versions 1 and 2.
double cgroup_cpus(const std::string& root, const std::string& membership);
}  // namespace detail

/// Memory of the machine, or of the control group (container) that leaves the least.
struct HostMemory {
  int64_t total_bytes = 0;
  /// What can still be had without swapping; files that the kernel keeps cached count as free.
  int64_t available_bytes = 0;
};

}  // namespace trainkit
