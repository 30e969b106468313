// Streams are queues with one thread each.
#include <random>
#include <thread>
#include <utility>

#include "state.h"

namespace cuda_sim {
namespace {

thread_local int device_of_thread = 0;

struct Streams {
  std::vector<std::unique_ptr<Stream>> all;  // including destroyed ones: their marks may still be waited for
  std::map<int, Stream*> defaults;           // by device
};
Streams& streams() {
  static auto* const made = new Streams;
  return *made;
}

/// Call with api_mutex held.
Stream* make_stream(int device, bool is_blocking) {
  auto& all = streams().all;
  all.push_back(std::make_unique<Stream>());
  Stream* stream = all.back().get();
  stream->device = device;
  stream->is_blocking = is_blocking;
  stream->id = static_cast<int>(all.size()) - 1;
  return stream;
}

Stream* default_stream(int device) {
  Stream*& stream = streams().defaults[device];
  if (!stream) stream = make_stream(device, true);
  return stream;
}

/// Waits for CUDA_SIM_DELAY_US, or a random time up to CUDA_SIM_RANDOM_DELAY_US.
void delay(int stream) {
  const long fixed = setting("DELAY_US", 0L), most = setting("RANDOM_DELAY_US", 0L);
  thread_local std::minstd_rand random(static_cast<unsigned>(setting("SEED", 1L) + 7919 * stream + 1));
  const long wanted = fixed + (most > 0 ? static_cast<long>(random() % static_cast<unsigned long>(most)) : 0);
  if (wanted > 0) std::this_thread::sleep_for(std::chrono::microseconds(wanted));
}

}  // namespace

void Stream::push(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    queue_.push_back(std::move(work));
    if (!is_started_) std::thread([this] { run(); }).detach();
    is_started_ = true;
  }
  changed_.notify_all();
}

void Stream::run() {
  uint64_t counted = 0;
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty(); });
      work = std::move(queue_.front());
      queue_.pop_front();
      is_busy_ = true;
    }
    delay(id);
    work();
    work = nullptr;
    const uint64_t used = processor_ns(CLOCK_THREAD_CPUTIME_ID);
    counts().stream_ns += used - std::exchange(counted, used);
    {
      const std::lock_guard lock(mutex_);
      is_busy_ = false;
    }
    changed_.notify_all();
  }
}

void Stream::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !is_busy_; });
}

void Stream::stop() {
  std::deque<std::function<void()>> given_up;
  std::unique_lock lock(mutex_);
  is_stopped_ = true;
  given_up.swap(queue_);
  changed_.wait_for(lock, std::chrono::seconds(1), [&] { return !is_busy_; });
}

bool Stream::is_idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !is_busy_;
}

void stop_streams() {
  std::vector<Stream*> all;
  {
    const std::lock_guard lock(api_mutex());
    for (const auto& stream : streams().all) all.push_back(stream.get());
  }
  for (Stream* stream : all) stream->stop();
}

int current_device() { return device_of_thread; }

Stream* stream_of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
    return default_stream(device_of_thread);
  auto* stream = reinterpret_cast<Stream*>(handle);
  if (stream->handle_check == Stream::kHandle) return stream;
  finding("handle", "a stream that was destroyed is used");
  fail(cudaErrorInvalidResourceHandle);
  return nullptr;
}

int device_of_stream(cudaStream_t handle) {
  const std::lock_guard lock(api_mutex());
  const Stream* stream = stream_of(handle);
  return stream ? stream->device : -1;
}

bool is_capturing(cudaStream_t handle) {
  const std::lock_guard lock(api_mutex());
  const Stream* stream = stream_of(handle);
  return stream && stream->capture;
}

Clock& host_clock() {
  static auto* const clock = new Clock;
  return *clock;
}

void host_waited_for(const Clock& clock) {
  const std::lock_guard lock(api_mutex());
  host_clock().join(clock);
}

void drain_device(int device) {
  std::vector<Stream*> of_device;
  Clock clock;
  {
    const std::lock_guard lock(api_mutex());
    for (const auto& stream : streams().all) {
      if (stream->device != device) continue;
      of_device.push_back(stream.get());
      clock.join(stream->clock);
    }
  }
  for (Stream* stream : of_device) stream->drain();
  host_waited_for(clock);
}

std::shared_ptr<AccessLog::Entry> AccessLog::add(int stream, const Clock& clock, const Work& work) {
  entries_.push_back(std::make_shared<Entry>(Entry{stream, clock, work.name, work.accesses, !work.is_late}));
  auto entry = entries_.back();
  check();
  return entry;
}

void AccessLog::set(Entry& entry, std::vector<Access> accesses) {
  const std::lock_guard lock(api_mutex());
  entry.accesses = std::move(accesses);
  entry.is_known = true;
  check();
}

void AccessLog::forget(const void* begin, size_t bytes) { races_.forget(begin, bytes); }

void AccessLog::check() {
  for (; !entries_.empty() && entries_.front()->is_known; entries_.pop_front()) {
    const Entry& entry = *entries_.front();
    const std::string race = races_.add(entry.stream, entry.clock, entry.name, entry.accesses);
    if (!race.empty()) finding("race", race);
  }
}

AccessLog& access_log() {
  static auto* const log = new AccessLog;
  return *log;
}

void forget_accesses(const void* begin, size_t bytes) { access_log().forget(begin, bytes); }

/// Runs work and reports the accesses of late work to the log.
static void run_work(const Work& work, AccessLog::Entry& entry) {
  std::vector<Access> late;
  if (sticky_error() == cudaSuccess) {
    work.run(late);
    spoil_if_chosen(work.name, work.is_late ? late : work.accesses);
  }
  if (work.is_late) access_log().set(entry, std::move(late));
}

cudaError_t enqueue_work(cudaStream_t handle, Work work) {
  CUDA_SIM_ENTER_SAFELY();
  const std::lock_guard lock(api_mutex());
  Stream* stream = stream_of(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (const auto capture = stream->capture) {
    if (capture->is_invalid) return fail(cudaErrorStreamCaptureInvalidated);
    Clock& clock = capture->clocks[stream];
    clock.advance(stream->id);
    const std::string race = capture->races.add(stream->id, clock, work.name, work.accesses);
    if (!race.empty()) finding("race", race + " (in a captured graph)");
    capture->nodes.push_back(std::move(work));
    return cudaSuccess;
  }
  stream->clock.join(host_clock());
  stream->clock.advance(stream->id);
  const auto entry = access_log().add(stream->id, stream->clock, work);
  stream->push([work = std::move(work), entry] { run_work(work, *entry); });
  return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t stream, std::string name, std::vector<Access> accesses, std::function<void()> run) {
  return enqueue_work(stream, {std::move(name), std::move(accesses), [run = std::move(run)](auto&) { run(); }});
}

/// Queues all nodes of a graph as one work. Call with api_mutex held.
void enqueue_graph(Stream& stream, const std::shared_ptr<const std::vector<Work>>& nodes) {
  stream.clock.join(host_clock());
  stream.clock.advance(stream.id);
  std::vector<std::shared_ptr<AccessLog::Entry>> entries;
  for (const Work& node : *nodes) entries.push_back(access_log().add(stream.id, stream.clock, node));
  stream.push([nodes, entries = std::move(entries)] {
    for (size_t i = 0; i < nodes->size(); ++i) run_work((*nodes)[i], *entries[i]);
  });
}

}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  CUDA_SIM_ENTER_SAFELY();  // a capture does not make it fail
  if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
  device_of_thread = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  CUDA_SIM_ENTER();
  if (const cudaError_t error = unsafe_call("cudaDeviceSynchronize")) return error;
  ++counts().device_syncs;
  drain_device(device_of_thread);
  return sticky_error();
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int) {
  CUDA_SIM_ENTER();
  const std::lock_guard lock(api_mutex());
  *handle = reinterpret_cast<cudaStream_t>(make_stream(device_of_thread, !(flags & cudaStreamNonBlocking)));
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Stream* stream = nullptr;
  {
    const std::lock_guard lock(api_mutex());
    if (!(stream = stream_of(handle))) return cudaErrorInvalidResourceHandle;
  }
  stream->drain();
  stream->handle_check = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  CUDA_SIM_ENTER();
  Stream* stream = nullptr;
  Clock clock;
  {
    const std::lock_guard lock(api_mutex());
    if (!(stream = stream_of(handle))) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return illegal_in(*stream, "cudaStreamSynchronize");
    clock = stream->clock;
  }
  ++counts().stream_syncs;
  stream->drain();
  host_waited_for(clock);
  return sticky_error();
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  CUDA_SIM_ENTER();
  Stream* stream = nullptr;
  Clock clock;
  {
    const std::lock_guard lock(api_mutex());
    if (!(stream = stream_of(handle))) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return illegal_in(*stream, "cudaStreamQuery");
    clock = stream->clock;
  }
  if (!stream->is_idle()) return cudaErrorNotReady;
  host_waited_for(clock);
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t call, void* data, unsigned) {
  return enqueue(handle, "callback", {}, [=] { call(handle, cudaSuccess, data); });
}

}  // extern "C"
