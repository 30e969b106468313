#pragma once
// What the parts of the simulated device share. Addresses of device memory cannot be read or written by the host: the
// same bytes are mapped a second time at backing().
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cuda_sim {

/// Bytes that a piece of work reads or writes: addresses of device memory, or of page-locked memory of the host.
struct Access {
  const void* begin;
  size_t bytes;
  bool writes;
};

/// Queues work on a stream, in whose thread it runs; if the stream captures, it becomes a node of the graph and runs in
/// each launch of that. Checks the accesses for races with other streams. nullptr: the default stream of this thread's
/// device. Does not block.
cudaError_t enqueue(cudaStream_t stream, std::string name, std::vector<Access> accesses, std::function<void()> run);

/// Where the host finds the bytes of an address of device memory; nullptr if it is none.
void* backing(const void* address);
/// Whose memory an address is; -1 if it is no device's.
int device_of(const void* address);
/// The bytes from `address` to the end of the allocation (cudaMalloc) that holds it; 0 if none does.
size_t bytes_left(const void* address);

/// Gives up what is queued, as the end of a process does; waits up to a second for what runs.
void stop_streams();

int device_count();
int current_device();
int device_of_stream(cudaStream_t stream);
bool is_capturing(cudaStream_t stream);

/// Reports a fault of the program that is tested, such as finding("race", "..."): prints it once, counts it, and lets
/// the process end with code 86.
void finding(const std::string& kind, const std::string& text);
/// Prints what may explain a later error, with CUDA_SIM_VERBOSE=1.
void note(const std::string& text);

/// Whether kernels compute: not with CUDA_SIM_NUMBERS=0, where device memory is all zeros and what the host does can be
/// timed.
bool computes();
/// Counts a launch of a kernel whose numbers an operation's CPU counterpart computes (LibTorch's, cuBLAS, cuFFT).
void count_launch(const char* name);
/// How many this thread has counted.
uint64_t launches_of_this_thread();

/// A setting CUDA_SIM_<name> of the environment, or `otherwise`.
const char* setting(const char* name, const char* otherwise = nullptr);
long setting(const char* name, long otherwise);

}  // namespace cuda_sim
