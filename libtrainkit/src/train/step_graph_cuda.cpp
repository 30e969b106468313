// Graphs of CUDA.
#include "step_graphs.h"

#ifdef TRAINKIT_WITH_CUDA

#include <ATen/Context.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace trainkit::detail {
namespace {

/// The name of a pool of memory in LibTorch's allocator, which knows it for as long as a graph is in it.
using Pool = std::shared_ptr<const at::cuda::MempoolId_t>;

class CudaGraphOfStep final : public GraphBackend::Graph {
 public:
  explicit CudaGraphOfStep(Pool pool) : pool_(std::move(pool)) {}
  at::cuda::CUDAGraph& graph() { return graph_; }
  void replay() override { graph_.replay(); }

 private:
  Pool pool_;
  at::cuda::CUDAGraph graph_;
};

/// One stream and one pool of memory for all graphs of a TrainStep. They may share it: each runs to its end before the
/// next one on the same stream, and nothing that they return is read in the pool after that.
class CudaGraphs final : public GraphBackend {
 public:
  explicit CudaGraphs(at::Device device)
      : index_(device.has_index() ? device.index() : c10::cuda::current_device()),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index_)) {}

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
    const c10::cuda::CUDAStreamGuard beside(stream_);
    Pool pool = pool_.lock();
    if (!pool) pool_ = pool = std::make_shared<const at::cuda::MempoolId_t>(at::cuda::graph_pool_handle());
    auto captured = std::make_unique<CudaGraphOfStep>(pool);
    // Other threads (a Prefetcher's, which page-lock memory) may call what a capturing one may not.
    captured->graph().capture_begin(*pool, cudaStreamCaptureModeThreadLocal);
    std::exception_ptr failed;
    try {
      work();
    } catch (...) {
      failed = std::current_exception();
    }
    bool ended = false;
    try {
      captured->graph().capture_end();
      ended = true;
    } catch (...) {
      if (!failed) failed = std::current_exception();
    }
    if (!failed) {
      follow(present, stream_);  // capture_begin has set the generator's seed and offset there; a replay sets them anew
      return captured;
    }
    captured.reset();
    if (!ended) clean_up(*pool);
    std::rethrow_exception(failed);
  }

 private:
  static void follow(const c10::cuda::CUDAStream& after, const c10::cuda::CUDAStream& before) {
    at::cuda::CUDAEvent done;
    done.record(before);
    done.block(after);
  }

  /// What CUDAGraph::capture_end leaves open when CUDA has given the capture up: the allocator would go on taking from
  /// the pool, and the generator would take each draw for a captured one.
  void clean_up(const at::cuda::MempoolId_t& pool) {
    (void)cudaGetLastError();
    for (const auto& close :
         {c10::cuda::CUDACachingAllocator::endAllocateToPool, c10::cuda::CUDACachingAllocator::releasePool}) {
      try {
        close(index_, pool);
      } catch (const std::exception&) {  // capture_end had come as far
      }
    }
    at::Generator generator = at::globalContext().defaultGenerator(at::Device(at::kCUDA, index_));
    const std::lock_guard lock(generator.mutex());
    generator.graphsafe_set_state(generator.clone());
  }

  c10::DeviceIndex index_;
  c10::cuda::CUDAStream stream_;
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
