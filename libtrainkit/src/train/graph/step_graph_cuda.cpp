// Captures and replays steps as CUDA graphs.
#include "train/graph/step_graphs.h"

#ifdef TRAINKIT_WITH_CUDA

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/libtorch/cuda_graphs.h"

namespace trainkit::detail {
namespace {

/// Id of a memory pool in LibTorch's allocator. The allocator keeps the pool for as long as a graph uses it.
using Pool = std::shared_ptr<const at::cuda::MempoolId_t>;

/// Returns the number of captures and graphs that use a pool. LibTorch's own count throws for an unused pool.
int uses_of(const at::cuda::MempoolId_t& pool, c10::DeviceIndex device) {
  try {
    return c10::cuda::CUDACachingAllocator::getPoolUseCount(device, pool);
  } catch (const c10::Error&) {
    return 0;
  }
}

// Note [Failed captures]
// ~~~~~~~~~~~~~~~~~~~~~~
// A step that cannot be captured must run eagerly afterwards, so a failed capture has to leave the process as it was.
// at::cuda::CUDAGraph does not do that if capture_begin, the work or capture_end throws. The generators remain in
// capture mode, the stream may still be capturing, and the allocators keep redirecting to the pool. clean_up()
// undoes each of these, wherever the capture stopped:
// 1. It resets the capture flag of every generator that took part.
// 2. It ends the capture of the stream and destroys a partial graph. If capture_end had come that far, reset() does it.
// 3. release_pools() stops the redirection and releases the pools of device and page-locked memory, which capture_begin
//    opens one after the other. It compares the pool's use count with the one before the capture, since releasing a
//    pool that was not opened would take it away from another graph. Each call may throw if capture_end had already
//    done it. From LibTorch 2.14 on reset() does so (kResetReleasesPool).
// 4. It clears the sticky error of the runtime.
// The capture mode is thread-local: other threads (a Prefetcher's workers, which page-lock memory) may make calls that
// are forbidden during a capture.

using Streams = std::vector<c10::cuda::CUDAStream>;  // one per device

/// Orders work: that on `after` waits for the work queued on `before`.
void follow(const c10::cuda::CUDAStream& after, const c10::cuda::CUDAStream& before) {
  at::cuda::CUDAEvent done;
  done.record(before);
  done.block(after);
}

/// A graph in a pool. See Note [Failed captures] and Note [Graphs of several devices].
class CudaGraphOfStep final : public GraphBackend::Graph, private at::cuda::CUDAGraph {
 public:
  explicit CudaGraphOfStep(Pool pool) : pool_(std::move(pool)) {}
  ~CudaGraphOfStep() override { release_other_pools(); }
  void replay() override;

  /// Captures `work` on these streams, which are the current ones; the first one's device is current. If that throws,
  /// allocators and generators are as before. See Note [Failed captures].
  void capture(const Streams& streams, const std::function<void()>& work);

 private:
  void begin(const Streams& streams);
  void join(const Streams& streams);
  void end(std::exception_ptr failed);
  void clean_up();
  void release_pools();
  void release_other_pools();

  Pool pool_;
  int uses_before_ = 0;                   // of the pool
  std::vector<c10::DeviceIndex> others_;  // further devices of the graph
  std::vector<c10::DeviceIndex> opened_;  // of those, whose pool is redirected
};

// Note [Graphs of several devices]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// One graph may contain the work of several devices: a stream joins a capture when it waits for an event of it.
// at::cuda::CUDAGraph handles one device only, the first; the same is done here for the others. Their allocators are
// redirected to the pool of the same id (each device has its own), their generators are registered, and their streams
// join after the begin and are joined by the first one before the end. A replay is one launch on the first device. It
// waits for the current streams of all devices, on which also the generators' states are written, and they wait for it.

void CudaGraphOfStep::begin(const Streams& streams) {
  for (size_t i = 1; i < streams.size(); ++i) {
    const c10::cuda::CUDAGuard device(streams[i].device_index());  // its state is allocated there
    before_capture(*this);
  }
  // Thread-local: other threads may make calls that a capturing one may not, see Note [Failed captures].
  capture_begin(*pool_, cudaStreamCaptureModeThreadLocal);
  in_capture();
  const auto is_captured = [id = capture_id_](cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long stream_id = 0;
    C10_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &stream_id));
    return status == cudaStreamCaptureStatusActive && stream_id == id;
  };
  for (size_t i = 1; i < streams.size(); ++i) {
    follow(streams[i], streams[0]);
    const c10::DeviceIndex device = streams[i].device_index();
    c10::cuda::CUDACachingAllocator::beginAllocateToPool(device, *pool_, is_captured);
    others_.push_back(device);
    opened_.push_back(device);
    const c10::cuda::CUDAGuard on(device);
    in_capture();
  }
}

/// Joins the other devices' streams, so that the capture can end.
void CudaGraphOfStep::join(const Streams& streams) {
  for (size_t i = 1; i < streams.size(); ++i) follow(streams[0], streams[i]);
  for (const c10::DeviceIndex device : opened_) {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device, *pool_);
  }
  opened_.clear();
}

void CudaGraphOfStep::capture(const Streams& streams, const std::function<void()>& work) {
  uses_before_ = uses_of(*pool_, c10::cuda::current_device());
  std::exception_ptr failed;
  try {
    begin(streams);
    work();
    join(streams);
  } catch (...) {
    failed = std::current_exception();
  }
  end(failed);
}

void CudaGraphOfStep::replay() {
  if (others_.empty()) return CUDAGraph::replay();
  const c10::cuda::CUDAStream first = c10::cuda::getCurrentCUDAStream(capture_stream_.device_index());
  for (auto& [state, increment] : captured_generator_states_) write_generator_state(*state, capture_id_, increment);
  for (const c10::DeviceIndex device : others_) follow(first, c10::cuda::getCurrentCUDAStream(device));
  const c10::cuda::CUDAGuard on_first(first.device_index());
  C10_CUDA_CHECK(cudaGraphLaunch(graph_exec_, first));
  for (const c10::DeviceIndex device : others_) follow(c10::cuda::getCurrentCUDAStream(device), first);
}

/// Releases the pools of the other devices; the first one's is CUDAGraph's.
void CudaGraphOfStep::release_other_pools() {
  for (const c10::DeviceIndex device : std::exchange(opened_, {})) {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device, *pool_);
  }
  for (const c10::DeviceIndex device : std::exchange(others_, {})) {
    c10::cuda::CUDACachingAllocator::releasePool(device, *pool_);
  }
}

void CudaGraphOfStep::end(std::exception_ptr failed) {
  try {
    if (!failed) return capture_end();
  } catch (...) {
    failed = std::current_exception();
  }
  clean_up();
  std::rethrow_exception(failed);
}

/// Undoes what capture_begin and capture_end have done, wherever they stopped. See Note [Failed captures].
void CudaGraphOfStep::clean_up() {
  release_other_pools();
  for (const auto& [state, increment] : captured_generator_states_) end_generator_capture(*state);
  if (!capture_ended_) {  // otherwise reset() suffices
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(capture_stream_, &status);
    if (status != cudaStreamCaptureStatusNone) end_abandoned_capture(*this, capture_stream_, &graph_);
    if (graph_ && !has_graph_) (void)cudaGraphDestroy(std::exchange(graph_, nullptr));
    if (!kResetReleasesPool) release_pools();
  }
  reset();
  (void)cudaGetLastError();
}

/// Closes the pools of device memory and of page-locked memory. See Note [Failed captures].
void CudaGraphOfStep::release_pools() {
  namespace device = c10::cuda::CUDACachingAllocator;
  if (capture_dev_ == UNDEFINED_DEVICE || uses_of(*pool_, capture_dev_) == uses_before_) return;
  at::HostAllocator* host = at::getHostAllocator(at::kCUDA);
  const auto ignore_errors = [](const auto& close) {
    try {
      close();
    } catch (const std::exception&) {  // capture_end has already done it
    }
  };
  ignore_errors([&] { device::endAllocateToPool(capture_dev_, *pool_); });
  ignore_errors([&] { host->end_allocate_to_pool(*pool_); });
  ignore_errors([&] { device::releasePool(capture_dev_, *pool_); });
  ignore_errors([&] { host->release_pool(*pool_); });
}

/// A stream for one TrainStep at a time. The next TrainStep reuses it, because LibTorch keeps a cuBLAS workspace of up
/// to 32 MiB for each stream that has computed a product.
class OwnStream {
 public:
  explicit OwnStream(c10::DeviceIndex device) : stream_(take(device)) {}
  ~OwnStream() {
    const std::lock_guard lock(mutex());
    idle().push_back(stream_);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  const c10::cuda::CUDAStream& get() const { return stream_; }

 private:
  static std::mutex& mutex() {
    static auto* const made = new std::mutex;
    return *made;
  }
  static std::vector<c10::cuda::CUDAStream>& idle() {
    static auto* const made = new std::vector<c10::cuda::CUDAStream>;
    return *made;
  }
  static c10::cuda::CUDAStream take(c10::DeviceIndex device) {
    const std::lock_guard lock(mutex());
    const auto found = std::find_if(idle().begin(), idle().end(), [&](const c10::cuda::CUDAStream& stream) {
      return stream.device_index() == device;
    });
    if (found == idle().end()) return c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device);
    const c10::cuda::CUDAStream stream = *found;
    idle().erase(found);
    return stream;
  }

  c10::cuda::CUDAStream stream_;
};

// Note [Streams of a captured step]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// CUDA cannot capture the default stream, so warm-up steps and captures use a stream of their own on each device.
// run_beside() orders it with the current one in both directions, also if the work throws. capture() first synchronises
// the device. Afterwards it lets the caller's stream follow the capture stream: capture_begin and replay() both write
// the generator's seed and offset on the device, each on its own stream. Graphs may share a pool although they reuse
// its memory: they are replayed on one stream, so each finishes before the next starts, and ScalarPack copies their
// results out of the pool before that.

/// One stream per device and one memory pool for all graphs of a TrainStep. See Note [Streams of a captured step].
class CudaGraphs final : public GraphBackend {
 public:
  explicit CudaGraphs(const std::vector<at::Device>& devices) {
    for (const at::Device device : devices) {
      own_streams_.push_back(
          std::make_unique<OwnStream>(device.has_index() ? device.index() : c10::cuda::current_device()));
      streams_.push_back(own_streams_.back()->get());
    }
  }

  void run_beside(const std::function<void()>& work) override {
    const c10::cuda::CUDAGuard device(streams_.front().device_index());
    const Streams current = current_streams();
    for (size_t i = 0; i < streams_.size(); ++i) follow(streams_[i], current[i]);
    std::exception_ptr failed;
    try {
      const c10::cuda::CUDAMultiStreamGuard guard(streams_);
      work();
    } catch (...) {
      failed = std::current_exception();
    }
    for (size_t i = 0; i < streams_.size(); ++i) follow(current[i], streams_[i]);
    if (failed) std::rethrow_exception(failed);
  }

  std::unique_ptr<Graph> capture(const std::function<void()>& work) override {
    const c10::cuda::CUDAGuard device(streams_.front().device_index());
    const Streams current = current_streams();
    for (const c10::cuda::CUDAStream& stream : streams_) {
      const c10::cuda::CUDAGuard on(stream.device_index());
      c10::cuda::device_synchronize();
    }
    Pool pool = pool_.lock();
    if (!pool) pool_ = pool = std::make_shared<const at::cuda::MempoolId_t>(at::cuda::graph_pool_handle());
    auto captured = std::make_unique<CudaGraphOfStep>(pool);
    std::exception_ptr failed;
    try {
      const c10::cuda::CUDAMultiStreamGuard guard(streams_);
      captured->capture(streams_, work);
    } catch (...) {
      failed = std::current_exception();
    }
    // see Note [Streams of a captured step]
    for (size_t i = 0; i < streams_.size(); ++i) follow(current[i], streams_[i]);
    if (failed) std::rethrow_exception(failed);
    return captured;
  }

 private:
  Streams current_streams() const {
    Streams current;
    for (const c10::cuda::CUDAStream& stream : streams_) {
      current.push_back(c10::cuda::getCurrentCUDAStream(stream.device_index()));
    }
    return current;
  }

  std::vector<std::unique_ptr<OwnStream>> own_streams_;
  Streams streams_;
  std::weak_ptr<const at::cuda::MempoolId_t> pool_;
};

}  // namespace

std::unique_ptr<GraphBackend> make_graph_backend(const std::vector<at::Device>& devices) {
  return devices.front().is_cuda() ? std::make_unique<CudaGraphs>(devices) : nullptr;
}

}  // namespace trainkit::detail

#else

namespace trainkit::detail {

std::unique_ptr<GraphBackend> make_graph_backend(const std::vector<at::Device>&) { return nullptr; }

}  // namespace trainkit::detail

#endif
