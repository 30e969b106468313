#pragma once
/// What `trainkit doctor` looks at. Each probe adds its lines to a Report and never fails: what cannot be found out is
/// a line that says so.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/report.h"

namespace trainkit::tool {

/// Versions of this library, LibTorch, CUDA, NCCL, the driver and the kernel.
void probe_versions(Report& report);
/// Model, number, affinity, quota of the control group, LibTorch's threads.
void probe_processors(Report& report);
/// Memory of the machine and the control group, and /dev/shm.
void probe_memory(Report& report);
/// ulimit: open files, locked memory, address space, file size.
void probe_limits(Report& report);
/// Why CUDA can be used or not, and for each GPU its memory, who holds it, copies from the host (with `quick` not), and
/// which GPU reaches which.
void probe_gpus(Report& report, bool quick);
/// The line "kernels" of a GPU: which of `codes` (nvcc's names, separated by spaces) runs on a compute capability, 10
/// major + minor, or that LibTorch's operations are used.
void add_kernels(Report& report, const std::string& section, const std::string& codes, int capability);
/// Free space, kind of file system, and the speed of reading what is not in memory: the largest files of `folder`, or,
/// if it may be written to and holds none, a temporary one of 128 MiB.
void probe_disk(Report& report, const std::string& what, const std::string& folder);
/// All-reduce over two ranks on the CPU (Gloo), and over all GPUs (NCCL) where there are several.
void probe_all_reduce(Report& report);

/// Time of one all-reduce of so many bytes, the median of several.
struct AllReduceSample {
  int64_t bytes = 0;
  double seconds = 0;
};

/// All-reduce of float32 on the CPU over Gloo on the loopback interface, by `ranks` threads of this process, for 4 KiB,
/// 256 KiB, 1 MiB and 25 MiB (the size of DDP's buckets).
absl::StatusOr<std::vector<AllReduceSample>> measure_gloo(int ranks);

}  // namespace trainkit::tool
