#pragma once
/// Declares the probes of `trainkit doctor`. Each adds lines to Findings and never fails: a value that it cannot
/// determine becomes a line that says so.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/findings.h"

namespace trainkit::tool {

/// Adds the versions of this library, LibTorch, CUDA, NCCL, the driver and the kernel.
void probe_versions(Findings& findings);
/// Adds the CPU model and vector unit, CPU affinity, the control group's quota, usable CPUs and LibTorch's threads.
void probe_processors(Findings& findings);
/// Adds the memory of the machine and of the control group, and the size of /dev/shm.
void probe_memory(Findings& findings);
/// Adds the sizes of jobs that fit the available memory and the disk of `folder`; see job_sizes.h.
void probe_job_sizes(Findings& findings, const std::string& folder);
/// Adds the limits that ulimit shows: open files, locked memory, address space, file size, processes.
void probe_limits(Findings& findings);
/// Adds the state of CUDA and the reason if it cannot be used. Adds for each GPU its memory, the processes that hold
/// memory, and which peers it can access; unless `quick`, also the speed of copies from the host.
void probe_gpus(Findings& findings, bool quick);
/// Adds the line "kernels" of a GPU: which of `codes` (nvcc's names, separated by spaces) runs on compute capability
/// `capability` (10 major + minor). Without a match it says that LibTorch's operations are used.
void add_kernels(Findings& findings, const std::string& section, const std::string& codes, int capability);
/// Adds free space, file-system type and the speed of reading uncached files. Reads the largest files of `folder`, up
/// to 256 MiB. If they have less than 16 MiB, writes and reads a temporary file of 128 MiB. `what` is the section.
void probe_disk(Findings& findings, const std::string& what, const std::string& folder);
/// Adds the time of all-reduce over two ranks on the CPU (Gloo), and over all GPUs (NCCL) if there are several.
void probe_all_reduce(Findings& findings);

/// Median time of an all-reduce of `bytes` bytes.
struct AllReduceSample {
  int64_t bytes = 0;
  double seconds = 0;
};

/// Measures all-reduce of float32 on the CPU with Gloo over the loopback interface, in `ranks` threads of this process.
/// Sizes: 4 KiB, 256 KiB, 1 MiB and 25 MiB (DDP's bucket size). Blocks.
absl::StatusOr<std::vector<AllReduceSample>> measure_gloo(int ranks);

}  // namespace trainkit::tool
