// Graphs of CUDA.
#include "step_graphs.h"

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

namespace trainkit::detail {
namespace {

/// The name of a pool of memory in LibTorch's allocator, which knows it for as long as a graph is in it.
using Pool = std::shared_ptr<const at::cuda::MempoolId_t>;

/// Captures and graphs that use a pool; LibTorch's own count does not take a pool that is unused.
int uses_of(const at::cuda::MempoolId_t& pool, c10::DeviceIndex device) {
  try {
    return c10::cuda::CUDACachingAllocator::getPoolUseCount(device, pool);
  } catch (const c10::Error&) {
    return 0;
  }
}

/// A graph in a pool. LibTorch's own cleanup leaves the pools and the generators as in a capture if that fails.
class CudaGraphOfStep final : public GraphBackend::Graph, private at::cuda::CUDAGraph {
 public:
  explicit CudaGraphOfStep(Pool pool) : pool_(std::move(pool)) {}
  void replay() override { CUDAGraph::replay(); }

  /// Captures `work` on the current stream. If that throws, allocators and generators are as before.
  void capture(const std::function<void()>& work);

 private:
  void end(std::exception_ptr failed);
  void clean_up();
  void release_pools();

  Pool pool_;
  int uses_before_ = 0;  // of the pool
};

void CudaGraphOfStep::capture(const std::function<void()>& work) {
  uses_before_ = uses_of(*pool_, c10::cuda::current_device());
  std::exception_ptr failed;
  try {
    // Other threads (a Prefetcher's, which page-lock memory) may call what a capturing one may not.
    capture_begin(*pool_, cudaStreamCaptureModeThreadLocal);
    work();
  } catch (...) {
    failed = std::current_exception();
  }
  end(failed);
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

/// Closes what capture_begin and capture_end left open, wherever they stopped.
void CudaGraphOfStep::clean_up() {
  for (const auto& [state, increment] : captured_generator_states_) state->capturing_ = false;
  if (!capture_ended_) {  // else reset() does the rest
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(capture_stream_, &status);
    if (status != cudaStreamCaptureStatusNone) (void)cudaStreamEndCapture(capture_stream_, &graph_);
    if (graph_) (void)cudaGraphDestroy(std::exchange(graph_, nullptr));
    release_pools();
  }
  reset();
  (void)cudaGetLastError();
}

/// The allocators' pools, device memory and page-locked memory, which a capture opens one after the other.
void CudaGraphOfStep::release_pools() {
  namespace device = c10::cuda::CUDACachingAllocator;
  if (capture_dev_ == UNDEFINED_DEVICE || uses_of(*pool_, capture_dev_) == uses_before_) return;
  at::HostAllocator* host = at::getHostAllocator(at::kCUDA);
  const auto try_to = [](const auto& close) {
    try {
      close();
    } catch (const std::exception&) {  // capture_end had come as far
    }
  };
  try_to([&] { device::endAllocateToPool(capture_dev_, *pool_); });
  try_to([&] { host->end_allocate_to_pool(*pool_); });
  try_to([&] { device::releasePool(capture_dev_, *pool_); });
  try_to([&] { host->release_pool(*pool_); });
}

/// A stream of one TrainStep at a time, which the next one may have: LibTorch keeps a workspace of cuBLAS, of up to
/// 32 MiB, for each stream that has ever computed a product.
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

/// One stream and one pool of memory for all graphs of a TrainStep. They may share it: each runs to its end before the
/// next one on the same stream, and nothing that they return is read in the pool after that.
class CudaGraphs final : public GraphBackend {
 public:
  explicit CudaGraphs(at::Device device)
      : index_(device.has_index() ? device.index() : c10::cuda::current_device()), own_stream_(index_) {}

  void run_beside(const std::function<void()>& work) override {
    const c10::cuda::CUDAGuard device(index_);
    const c10::cuda::CUDAStream present = c10::cuda::getCurrentCUDAStream(index_);
    follow(stream_, present);
    try {
      const c10::cuda::CUDAStreamGuard beside(stream_);
      work();
    } catch (...) {
      follow(present, stream_);
      throw;
    }
    follow(present, stream_);
  }

  std::unique_ptr<Graph> capture(const std::function<void()>& work) override {
    const c10::cuda::CUDAGuard device(index_);
    const c10::cuda::CUDAStream present = c10::cuda::getCurrentCUDAStream(index_);
    c10::cuda::device_synchronize();
    Pool pool = pool_.lock();
    if (!pool) pool_ = pool = std::make_shared<const at::cuda::MempoolId_t>(at::cuda::graph_pool_handle());
    auto captured = std::make_unique<CudaGraphOfStep>(pool);
    std::exception_ptr failed;
    try {
      const c10::cuda::CUDAStreamGuard beside(stream_);
      captured->capture(work);
    } catch (...) {
      failed = std::current_exception();
    }
    follow(present, stream_);  // capture_begin and replay write the generator's numbers, each on its stream
    if (failed) std::rethrow_exception(failed);
    return captured;
  }

 private:
  static void follow(const c10::cuda::CUDAStream& after, const c10::cuda::CUDAStream& before) {
    at::cuda::CUDAEvent done;
    done.record(before);
    done.block(after);
  }

  c10::DeviceIndex index_;
  OwnStream own_stream_;
  const c10::cuda::CUDAStream& stream_ = own_stream_.get();
  std::weak_ptr<const at::cuda::MempoolId_t> pool_;
};

}  // namespace

std::unique_ptr<GraphBackend> make_graph_backend(at::Device device) {
  if (graph_backend_of_test()) return graph_backend_of_test()();
  return device.is_cuda() ? std::make_unique<CudaGraphs>(device) : nullptr;
}

}  // namespace trainkit::detail

#else

namespace trainkit::detail {

std::unique_ptr<GraphBackend> make_graph_backend(at::Device) {
  return graph_backend_of_test() ? graph_backend_of_test()() : nullptr;
}

}  // namespace trainkit::detail

#endif
