// Stream capture by CUDA's rules (CUDA C++ Programming Guide, "Creating a Graph Using Stream Capture"), and graphs.
#include <algorithm>

#include "state.h"

namespace cuda_sim {
namespace {

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;
thread_local char thread_identity;

/// Call with api_mutex held.
std::vector<std::shared_ptr<Capture>>& active_captures() {
  static auto* const captures = new std::vector<std::shared_ptr<Capture>>;
  return *captures;
}

std::atomic<int> captures_underway{0};

struct Graph {
  std::shared_ptr<const std::vector<Work>> nodes;
};

/// Returns whether a call that CUDA considers unsafe is forbidden to this thread during `capture`.
bool is_forbidden_by(const Capture& capture) {
  if (mode_of_thread == cudaStreamCaptureModeRelaxed || capture.mode == cudaStreamCaptureModeRelaxed) return false;
  if (capture.thread == &thread_identity) return true;
  return mode_of_thread == cudaStreamCaptureModeGlobal && capture.mode == cudaStreamCaptureModeGlobal;
}

/// Returns whether a stream of the capture has work that the capture's first stream does not wait for.
bool is_unjoined(Capture& capture) {
  const Clock& end = capture.clocks[capture.origin];
  return std::any_of(capture.clocks.begin(), capture.clocks.end(), [&](const auto& entry) {
    const int id = entry.first->id;
    return entry.second.at(id) > end.at(id);
  });
}

}  // namespace

cudaError_t unsafe_call(const char* name) {
  bool is_forbidden = false;
  {
    const std::lock_guard lock(api_mutex());
    for (const auto& capture : active_captures()) {
      if (!is_forbidden_by(*capture)) continue;
      capture->is_invalid = is_forbidden = true;
    }
  }
  if (!is_forbidden) return cudaSuccess;
  note(std::string(name) + " is called while a stream captures");
  return fail(cudaErrorStreamCaptureUnsupported);
}

cudaError_t call_in_capture(const char* name, bool is_always) {
  if (!is_always && captures_underway == 0) return cudaSuccess;
  const uint64_t n = ++counts().capture_calls;
  if (const long wanted = setting("FAIL_CAPTURE", 0L); wanted <= 0 || n != static_cast<uint64_t>(wanted)) {
    return cudaSuccess;
  }
  const std::lock_guard lock(api_mutex());
  for (const auto& capture : active_captures()) capture->is_invalid = true;
  note(std::string(name) + " fails because of CUDA_SIM_FAIL_CAPTURE");
  return fail(cudaErrorStreamCaptureUnsupported);
}

cudaError_t illegal_in(Stream& stream, const char* name) {
  stream.capture->is_invalid = true;
  note(std::string(name) + " is called for a stream that captures");
  return fail(cudaErrorStreamCaptureUnsupported);
}

}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  CUDA_SIM_ENTER_SAFELY();
  if (const cudaError_t error = call_in_capture(__func__, /*is_always=*/true)) return error;
  const std::lock_guard lock(api_mutex());
  Stream* stream = stream_of(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (handle == nullptr || handle == cudaStreamLegacy) return fail(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return fail(cudaErrorIllegalState);
  static unsigned long long ids = 0;
  auto capture = std::make_shared<Capture>();
  capture->id = ++ids;
  capture->mode = mode;
  capture->thread = &thread_identity;
  capture->origin = stream;
  capture->clocks[stream];
  stream->capture = capture;
  active_captures().push_back(std::move(capture));
  ++captures_underway;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  (void)call_in_capture(__func__, /*is_always=*/true);  // ends the capture even if it fails
  const std::lock_guard lock(api_mutex());
  Stream* stream = stream_of(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  const auto capture = stream->capture;
  if (!capture) return fail(cudaErrorIllegalState);
  if (capture->origin != stream) return fail(cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != &thread_identity) {
    return fail(cudaErrorStreamCaptureWrongThread);
  }
  const bool unjoined = is_unjoined(*capture);
  for (const auto& [other, clock] : capture->clocks) other->capture = nullptr;
  std::erase(active_captures(), capture);
  --captures_underway;
  if (capture->is_invalid) return fail(cudaErrorStreamCaptureInvalidated);
  if (unjoined) return fail(cudaErrorStreamCaptureUnjoined);
  *graph =
      reinterpret_cast<cudaGraph_t>(new Graph{std::make_shared<const std::vector<Work>>(std::move(capture->nodes))});
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  CUDA_SIM_ENTER_SAFELY();
  const std::lock_guard lock(api_mutex());
  const Stream* stream = stream_of(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  *status = !stream->capture              ? cudaStreamCaptureStatusNone
            : stream->capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                          : cudaStreamCaptureStatusActive;
  if (id) *id = stream->capture ? stream->capture->id : 0;
  if (graph) *graph = nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = reinterpret_cast<Graph*>(graph)->nodes->size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  CUDA_SIM_ENTER_SAFELY();
  if (const cudaError_t error = call_in_capture(__func__, /*is_always=*/true)) return error;
  *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  CUDA_SIM_ENTER();
  const std::lock_guard lock(api_mutex());
  Stream* stream = stream_of(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (stream->capture) return illegal_in(*stream, "cudaGraphLaunch");  // CUDA makes it a child graph: not needed here
  ++counts().graph_launches;
  if (is_dropped_replay()) return cudaSuccess;
  enqueue_graph(*stream, reinterpret_cast<Graph*>(executable)->nodes);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<Graph*>(executable);  // pending launches keep its nodes
  return cudaSuccess;
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaErrorNotSupported; }

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t* count) {
  *count = 0;
  return cudaSuccess;
}

}  // extern "C"
