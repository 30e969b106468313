#pragma once
/// The number of processors of this process, and how to share them.
///
/// Loader workers and LibTorch's own threads (at::set_num_threads) use the same processors. If both use all of them,
/// they wait for each other, and a gather or a small matrix product can become ten times slower. Divide them:
///
///   const int workers = suggest_num_workers(devices);
///   at::set_num_threads(suggest_intra_op_threads(workers));
///
/// A worker always runs LibTorch with one thread.

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <string>

namespace trainkit {

/// Number of processors that this process may use: the affinity mask (taskset, numactl), limited by the control group's
/// quota (containers, rounded up). At least 1. Reads several files of /proc and /sys, so call it once.
int available_cpus();

/// Suggests loader workers for each of `ranks` processes on this machine: min(cpus / 2, 8, 2 * devices) divided by the
/// ranks, at least 1. `devices` counts the devices of the whole machine; use 1 for CPU only.
int suggest_num_workers(int devices = 1, int ranks = 1, int cpus = available_cpus());

/// Cost of reading rows in a loader's worker.
enum class ReadCost {
  kCopy,   ///< Rows are copied from memory or from a mapped file: workers are nearly always idle.
  kDecode  ///< Rows are decoded or transformed: workers are busy.
};

/// Suggests LibTorch threads next to `num_workers` workers in each of `ranks` processes, at least 1: the remaining
/// processors, or all of them if the workers only copy.
int suggest_intra_op_threads(int num_workers, ReadCost cost = ReadCost::kDecode, int ranks = 1);

namespace detail {
/// Returns the CPU quota, in processors, of the control group that `membership` (the text of /proc/self/cgroup) names,
/// in the tree at `root`; 0 if there is none. Supports cgroup versions 1 and 2.
double cgroup_cpus(const std::string& root, const std::string& membership);
}  // namespace detail

/// Environment variables by name.
using EnvironmentVariables = std::map<std::string, std::string, std::less<>>;

/// Copies this process's environment. No other thread may change it during the call.
EnvironmentVariables environment_variables();

/// Checks the environment for settings that would break a run later with an unclear message. Returns an error of exit
/// code 2 that names the variable (env.value):
///   OMP_NUM_THREADS  is not a number from 1 to 4096, nor several such numbers separated by commas;
///   TMPDIR           is not a folder;
///   TRAINKIT_...     is a variable that no program of this project reads (with the nearest known name).
/// A limit below 64 open files is an error too (env.limit).
absl::Status check_environment(const EnvironmentVariables& variables = environment_variables());

}  // namespace trainkit
