#pragma once
// Shared by the runtime's own files. Nothing here is destroyed, because LibTorch's destructors call into the runtime.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels.h"
#include "races.h"
#include "sim.h"

namespace cuda_sim {

/// Held by every API function that changes state visible to other threads; streams do not hold it while they work.
std::mutex& api_mutex();

// ---- memory.cpp
struct HostBlock {
  size_t bytes;
  int pending_copies;  // copies that read or write it
};
/// The page-locked host block that contains an address; nullptr if none. Call with api_mutex held.
HostBlock* host_block_of(const void* address);
/// Returns whether [address, address + bytes) is within one allocation of device memory.
bool is_device_range(const void* address, size_t bytes);
/// Clears the access history of freed bytes. Call with api_mutex held.
void forget_accesses(const void* begin, size_t bytes);

// ---- events.cpp
/// A position in a stream: recorded by an event and waited for by a wait.
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_reached = false;
  std::chrono::steady_clock::time_point time;
  Clock clock;
  void reach();
  void wait();
  bool query();
};

// ---- streams.cpp
struct Capture;

struct Stream {
  int device = 0;
  int id = 0;   // its component of a clock
  Clock clock;  // finished work known before the next work
  std::shared_ptr<Capture> capture;
  bool is_blocking = false;
  uint64_t handle_check = kHandle;
  static constexpr uint64_t kHandle = 0x5354524541;

  void push(std::function<void()> work);
  /// Blocks until all queued work has finished.
  void drain();
  /// Discards queued work, and waits up to a second for running work.
  void stop();
  bool is_idle();

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool is_busy_ = false, is_started_ = false, is_stopped_ = false;
};

/// nullptr, with the error cudaErrorInvalidResourceHandle reported, if it is not a stream.
Stream* stream_of(cudaStream_t stream);
/// The work that the host has waited for. Call with api_mutex held.
Clock& host_clock();
/// Records that the host has waited for all work in `clock`.
void host_waited_for(const Clock& clock);
/// Waits for all work of a device.
void drain_device(int device);

// ---- captures.cpp
/// Work of a stream. The accesses of our kernels are known after they ran (is_late), all others before.
struct Work {
  std::string name;
  std::vector<Access> accesses;
  std::function<void(std::vector<Access>& late)> run;
  bool is_late = false;
};

/// Checks work for races with all work queued before it, once the accesses of both are known.
class AccessLog {
 public:
  struct Entry {
    int stream;
    Clock clock;
    std::string name;
    std::vector<Access> accesses;
    bool is_known;
  };
  /// Call with api_mutex held.
  std::shared_ptr<Entry> add(int stream, const Clock& clock, const Work& work);
  void set(Entry& entry, std::vector<Access> accesses);
  void forget(const void* begin, size_t bytes);

 private:
  void check();
  std::deque<std::shared_ptr<Entry>> entries_;
  RaceDetector races_;
};
AccessLog& access_log();

/// Queues all nodes of a graph as one work. Call with api_mutex held.
void enqueue_graph(Stream& stream, const std::shared_ptr<const std::vector<Work>>& nodes);
/// enqueue() of sim.h, for work that may be late.
cudaError_t enqueue_work(cudaStream_t stream, Work work);

struct Capture {
  unsigned long long id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  const void* thread = nullptr;  // the thread that began it
  Stream* origin = nullptr;
  bool is_invalid = false;
  std::vector<Work> nodes;
  std::map<Stream*, Clock> clocks;  // within the capture
  RaceDetector races;
};

/// Records the error. A call that CUDA forbids while a stream captures also invalidates the capture.
cudaError_t unsafe_call(const char* name);
/// Like unsafe_call, for the capture of one stream (a synchronisation with it, a copy of pageable memory).
cudaError_t illegal_in(Stream& stream, const char* name);

// ---- errors.cpp
/// Sets the value that cudaGetLastError returns.
cudaError_t fail(cudaError_t error);
/// The error that a kernel left, which every later call returns; cudaSuccess if none.
cudaError_t sticky_error();
void set_sticky_error(cudaError_t error);

/// Counts a call during a capture. Fails the call and the capture if CUDA_SIM_FAIL_CAPTURE names it. Always counted:
/// the calls that begin, end and instantiate (`is_always`).
cudaError_t call_in_capture(const char* name, bool is_always = false);

#define CUDA_SIM_ENTER()                                                                                     \
  do {                                                                                                       \
    if (const cudaError_t sticky = ::cuda_sim::sticky_error(); sticky != cudaSuccess) return sticky;         \
    if (const cudaError_t error = ::cuda_sim::call_in_capture(__func__); error != cudaSuccess) return error; \
  } while (false)

/// The same for a call that invalidates no capture, because it is a query or because the runtime itself calls it.
#define CUDA_SIM_ENTER_SAFELY()                                                                      \
  do {                                                                                               \
    if (const cudaError_t sticky = ::cuda_sim::sticky_error(); sticky != cudaSuccess) return sticky; \
  } while (false)

// ---- faults.cpp
/// CUDA_SIM_DROP_COPY=n[:bytes]: returns whether this copy between host and device is the n-th (of that size), which is
/// omitted.
bool is_dropped_copy(size_t bytes);
/// CUDA_SIM_DROP_REPLAY=n: returns whether this graph launch is the n-th, which is omitted.
bool is_dropped_replay();
/// CUDA_SIM_WRONG_KERNEL=name[:n]: changes the output of work whose name contains `name`, each time or the n-th time.
void spoil_if_chosen(const std::string& name, const std::vector<Access>& accesses);

// ---- counts
struct Counts {
  std::atomic<uint64_t> launches{0}, graph_launches{0}, to_device{0}, to_host{0}, on_device{0}, between_devices{0},
      fills{0};
  std::atomic<uint64_t> bytes_to_device{0}, bytes_to_host{0}, pageable{0};
  std::atomic<uint64_t> stream_syncs{0}, event_syncs{0}, device_syncs{0};
  std::atomic<uint64_t> nccl_calls{0}, nccl_groups{0}, nccl_bytes{0};
  std::atomic<uint64_t> mallocs{0}, frees{0}, host_allocations{0}, capture_calls{0}, findings{0};
  std::atomic<uint64_t> stream_ns{0};  // processor time of the threads that run the streams' work
};
Counts& counts();
/// Processor time of CLOCK_THREAD_CPUTIME_ID or CLOCK_PROCESS_CPUTIME_ID.
uint64_t processor_ns(clockid_t clock);

size_t device_bytes();

}  // namespace cuda_sim
