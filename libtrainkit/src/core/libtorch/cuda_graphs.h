#pragma once
/// Differences of at::cuda::CUDAGraph between versions: random generators in captures, and failed captures.
#ifdef TRAINKIT_WITH_CUDA
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <cstdint>
#include <exception>
#include <mutex>

namespace trainkit::detail {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
/// Whether CUDAGraph::reset() closes and releases the pool of a capture that did not reach its end.
constexpr bool kResetReleasesPool = false;

/// Ends the capture of the graph's stream. Sets `made` to the graph unless reset() destroys it.
inline void end_abandoned_capture(at::cuda::CUDAGraph&, cudaStream_t stream, cudaGraph_t* made) {
  (void)cudaStreamEndCapture(stream, made);
#if TORCH_VERSION_MINOR == 13
  c10::cuda::CUDACachingAllocator::markCaptureEnd(c10::cuda::current_device());
#endif
}

/// Lets a capture that begins later draw from the default generator of the current device.
inline void before_capture(at::cuda::CUDAGraph& graph) {
  graph.register_generator_state(at::cuda::detail::getDefaultCUDAGenerator());
}
/// The same for a capture that the current stream has joined.
inline void in_capture() {}
#else
constexpr bool kResetReleasesPool = true;

class NoWarnings final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

inline void end_abandoned_capture(at::cuda::CUDAGraph& graph, cudaStream_t, cudaGraph_t*) {
  NoWarnings none;  // that the graph is empty, if the capture failed early
  const c10::WarningUtils::WarningHandlerGuard quiet(&none);
  try {
    graph.capture_end_pre();  // also ends what LibTorch's allocators do for a capture
  } catch (const std::exception&) {
  }
}

inline void before_capture(at::cuda::CUDAGraph&) {}

/// LibTorch would do so at the first draw, in operations that the eager step does not have.
inline void in_capture() {
  auto* generator =
      at::get_generator_or_default<at::CUDAGeneratorImpl>({}, at::cuda::detail::getDefaultCUDAGenerator());
  const std::lock_guard lock(generator->mutex_);
  (void)generator->philox_cuda_state(0);
}
#endif

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12
/// Leaves the generator as before a capture that failed.
inline void end_generator_capture(at::CUDAGeneratorState& state) { state.capturing_ = false; }

/// Writes the state from which a graph draws its random numbers to the device, and advances it by those of one replay.
/// Source: CUDAGeneratorState::replay_prologue in ATen/cuda/CUDAGeneratorImpl.cpp (PyTorch 2.11, 2.15), which is not
/// exported.
inline void write_generator_state(at::CUDAGeneratorState& state, unsigned long long, uint64_t increment) {
  if (increment == 0) return;
  at::Tensor(state.seed_extragraph_).fill_(static_cast<int64_t>(state.seed_));
  at::Tensor(state.offset_extragraph_).fill_(static_cast<int64_t>(state.philox_offset_per_thread_));
  state.philox_offset_per_thread_ += increment;
}
#else
/// CUDAGraph::reset() does so.
inline void end_generator_capture(at::CUDAGeneratorState&) {}

inline void write_generator_state(at::CUDAGeneratorState& state, unsigned long long capture, uint64_t increment) {
  if (increment == 0) return;
  const std::lock_guard lock(state.capture_states_mutex_);
  const at::CUDAGeneratorCaptureState& captured = *state.capture_states_.at(capture);
  const auto write = [](const at::TensorBase& base, uint64_t value) {
    const at::Tensor tensor(base);
    tensor.fill_(static_cast<int64_t>(value));
    // A graph that is destroyed frees the tensor, although a replay may still read it.
    tensor.record_stream(c10::cuda::getCurrentCUDAStream(tensor.device().index()).unwrap());
  };
  write(captured.rng_state_seed_extragraph_, state.seed_);
  write(captured.rng_state_offset_extragraph_, state.philox_offset_per_thread_);
  state.philox_offset_per_thread_ += increment;
}
#endif

}  // namespace trainkit::detail
#endif
