// A replacement of the simulated runtime: memory, streams and captures of one stream, enough to test NCCL alone.
#include <sys/mman.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "sim.h"

namespace {

using Run = std::function<void()>;

struct Stream {
  int device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Run> queue;
  bool busy = false;
  std::shared_ptr<std::vector<Run>> capture;

  explicit Stream(int of) : device(of) {
    std::thread([this] { work(); }).detach();
  }
  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return !queue.empty(); });
      const Run run = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      run();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  void push(Run run) {
    std::lock_guard lock(mutex);
    queue.push_back(std::move(run));
    changed.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return queue.empty() && !busy; });
  }
};

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  int recorded = 0, reached = 0;
};

struct Block {
  size_t bytes;
  int device;
  std::byte* backing;
};

struct World {
  std::mutex mutex;
  std::map<const char*, Block> blocks;
  std::map<int, Stream*> default_streams;
};

World& world() {
  static World& all = *new World;
  return all;
}

thread_local int device_of_thread = 0;

const Block* find(const void* address, size_t* offset) {
  std::lock_guard lock(world().mutex);
  const char* at = static_cast<const char*>(address);
  auto next = world().blocks.upper_bound(at);
  if (next == world().blocks.begin()) return nullptr;
  --next;
  *offset = static_cast<size_t>(at - next->first);
  return *offset < next->second.bytes ? &next->second : nullptr;
}

Stream* stream_of(cudaStream_t stream) {
  if (stream) return reinterpret_cast<Stream*>(stream);
  std::lock_guard lock(world().mutex);
  Stream*& found = world().default_streams[device_of_thread];
  if (!found) found = new Stream(device_of_thread);
  return found;
}

std::byte* host(const void* address) {
  void* backed = cuda_sim::backing(address);
  return static_cast<std::byte*>(backed ? backed : const_cast<void*>(address));
}

}  // namespace

namespace cuda_sim {

cudaError_t enqueue(cudaStream_t stream, std::string, std::vector<Access> accesses, std::function<void()> run) {
  for (const Access& access : accesses) {
    if (bytes_left(access.begin) < access.bytes) {
      std::fprintf(stderr, "access beyond memory\n");
      std::abort();
    }
  }
  Stream* queue = stream_of(stream);
  queue->capture ? queue->capture->push_back(std::move(run)) : queue->push(std::move(run));
  return cudaSuccess;
}

void* backing(const void* address) {
  size_t offset = 0;
  const Block* block = find(address, &offset);
  return block ? block->backing + offset : nullptr;
}
int device_of(const void* address) {
  size_t offset = 0;
  const Block* block = find(address, &offset);
  return block ? block->device : -1;
}
size_t bytes_left(const void* address) {
  size_t offset = 0;
  const Block* block = find(address, &offset);
  return block ? block->bytes - offset : 0;
}

int current_device() { return device_of_thread; }
int device_of_stream(cudaStream_t stream) { return stream_of(stream)->device; }
bool is_capturing(cudaStream_t stream) { return stream_of(stream)->capture != nullptr; }
void finding(const std::string& kind, const std::string& text) {
  std::fprintf(stderr, "finding: %s: %s\n", kind.c_str(), text.c_str());
}
long setting(const char* name, long otherwise) {
  const char* value = std::getenv((std::string("CUDA_SIM_") + name).c_str());
  return value ? std::atol(value) : otherwise;
}

void count_device_time() {}
void count_nccl_call(uint64_t) {}
void count_nccl_group() {}

}  // namespace cuda_sim

extern "C" {

cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  device_of_thread = device;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** address, size_t bytes) {
  *address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::lock_guard lock(world().mutex);
  world().blocks[static_cast<char*>(*address)] = {bytes, device_of_thread, new std::byte[bytes]()};
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  std::lock_guard lock(world().mutex);
  delete[] world().blocks[static_cast<char*>(address)].backing;
  world().blocks.erase(static_cast<char*>(address));
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(host(to), host(from), bytes);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = reinterpret_cast<cudaStream_t>(new Stream(device_of_thread));
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream_of(stream)->drain();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  Event* event = reinterpret_cast<Event*>(handle);
  std::lock_guard lock(event->mutex);
  stream_of(stream)->push([event, number = ++event->recorded] {
    std::lock_guard reached(event->mutex);
    event->reached = number;
    event->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  Event* event = reinterpret_cast<Event*>(handle);
  std::lock_guard lock(event->mutex);
  stream_of(stream)->push([event, number = event->recorded] {
    std::unique_lock wait(event->mutex);
    event->changed.wait(wait, [&] { return event->reached >= number; });
  });
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream_of(stream)->capture = std::make_shared<std::vector<Run>>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(new std::vector<Run>(*std::exchange(stream_of(stream)->capture, nullptr)));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Run& run : *reinterpret_cast<std::vector<Run>*>(exec)) stream_of(stream)->push(run);
  return cudaSuccess;
}

}  // extern "C"
