#pragma once
// Shared by the parts of the simulated device. The host cannot read or write addresses of device memory: the same bytes
// are mapped a second time at backing().
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cuda_sim {

/// Bytes that a work reads or writes: addresses of device memory, or of page-locked host memory.
struct Access {
  const void* begin;
  size_t bytes;
  bool writes;
};

/// Queues work on a stream, whose thread runs it. If the stream is capturing, the work becomes a node of the graph and
/// runs in each launch of the graph. Checks the accesses for races with other streams. nullptr: the default stream of
/// this thread's device. Does not block.
cudaError_t enqueue(cudaStream_t stream, std::string name, std::vector<Access> accesses, std::function<void()> run);

/// The host address for an address of device memory; nullptr if it is not device memory.
void* backing(const void* address);
/// The device that an address belongs to; -1 if none.
int device_of(const void* address);
/// The bytes from `address` to the end of its allocation (cudaMalloc); 0 if there is none.
size_t bytes_left(const void* address);
/// Counts a collective call of NCCL and the bytes of one rank's part in it; and a group of calls that started together.
void count_nccl_call(uint64_t bytes);
/// Adds this thread's processor time to that of the device; called once, at its end.
void count_device_time();
void count_nccl_group();

/// Discards queued work, as process exit does; waits up to a second for running work.
void stop_streams();

int device_count();
int current_device();
int device_of_stream(cudaStream_t stream);
bool is_capturing(cudaStream_t stream);

/// Reports a fault of the tested program, for example finding("race", "..."): prints it once, counts it, and makes the
/// process exit with code 86.
void finding(const std::string& kind, const std::string& text);
/// Prints information that may explain a later error, with CUDA_SIM_VERBOSE=1.
void note(const std::string& text);

/// Returns whether kernels compute. With CUDA_SIM_NUMBERS=0 they do not: device memory is all zeros, and host time can
/// be measured.
bool computes();
/// Counts a launch of a kernel whose values an operation's CPU counterpart computes (LibTorch's, cuBLAS, cuFFT).
void count_launch(const char* name);
/// The count of this thread.
uint64_t launches_of_this_thread();

/// A setting CUDA_SIM_<name> of the environment, or `otherwise`.
const char* setting(const char* name, const char* otherwise = nullptr);
long setting(const char* name, long otherwise);

}  // namespace cuda_sim
