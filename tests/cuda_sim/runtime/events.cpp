// Events mark positions in streams.
#include "state.h"

namespace cuda_sim {
namespace {

/// A recorded event; its marks stay valid when it is recorded again or destroyed.
struct Event {
  std::shared_ptr<Mark> last;
  std::shared_ptr<Capture> capture;  // the capture that it was recorded in
  Clock captured;
  bool has_timing = true;
};

Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

/// The event's mark, or the error of a call that reads it from the host.
cudaError_t last_mark(cudaEvent_t event, const char* name, std::shared_ptr<Mark>& mark) {
  if (const cudaError_t error = unsafe_call(name)) return error;
  const std::lock_guard lock(api_mutex());
  if (event_of(event)->capture) return fail(cudaErrorCapturedEvent);
  mark = event_of(event)->last;
  return cudaSuccess;
}

}  // namespace

void Mark::reach() {
  {
    const std::lock_guard lock(mutex);
    is_reached = true;
    time = std::chrono::steady_clock::now();
  }
  changed.notify_all();
}

void Mark::wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return is_reached; });
}

bool Mark::query() {
  const std::lock_guard lock(mutex);
  return is_reached;
}

}  // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  CUDA_SIM_ENTER();
  auto* made = new Event;
  made->has_timing = !(flags & cudaEventDisableTiming);
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(api_mutex());
  delete event_of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned) {
  CUDA_SIM_ENTER();
  const std::lock_guard lock(api_mutex());
  Stream* stream = stream_of(stream_handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  Event& event = *event_of(handle);
  if (stream->capture) {
    event.capture = stream->capture;
    event.captured = stream->capture->clocks[stream];
    return cudaSuccess;
  }
  event.capture = nullptr;
  event.last = std::make_shared<Mark>();
  event.last->clock = stream->clock;
  event.last->clock.join(host_clock());
  stream->push([mark = event.last] { mark->reach(); });
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  CUDA_SIM_ENTER();
  std::shared_ptr<Mark> mark;
  if (const cudaError_t error = last_mark(event, "cudaEventQuery", mark)) return error;
  if (mark && !mark->query()) return cudaErrorNotReady;
  if (mark) host_waited_for(mark->clock);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CUDA_SIM_ENTER();
  std::shared_ptr<Mark> mark;
  if (const cudaError_t error = last_mark(event, "cudaEventSynchronize", mark)) return error;
  ++counts().event_syncs;
  if (!mark) return cudaSuccess;
  mark->wait();
  host_waited_for(mark->clock);
  return sticky_error();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  CUDA_SIM_ENTER();
  const std::lock_guard lock(api_mutex());
  const Event &a = *event_of(from), &b = *event_of(to);
  if (!a.has_timing || !b.has_timing || !a.last || !b.last) return fail(cudaErrorInvalidResourceHandle);
  if (!a.last->query() || !b.last->query()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(b.last->time - a.last->time).count();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  CUDA_SIM_ENTER();
  const std::lock_guard lock(api_mutex());
  Stream* stream = stream_of(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  const Event& event = *event_of(event_handle);
  if (event.capture && (handle == nullptr || handle == cudaStreamLegacy)) {  // it cannot be captured
    event.capture->is_invalid = true;
    return fail(cudaErrorStreamCaptureImplicit);
  }
  if (event.capture) {  // the stream joins the capture
    if (stream->capture && stream->capture != event.capture) return fail(cudaErrorStreamCaptureMerge);
    stream->capture = event.capture;
    event.capture->clocks[stream].join(event.captured);
    return cudaSuccess;
  }
  if (stream->capture) return event.last ? fail(cudaErrorStreamCaptureIsolation) : cudaSuccess;
  if (!event.last) return cudaSuccess;
  stream->clock.join(event.last->clock);
  stream->push([mark = event.last] { mark->wait(); });
  return cudaSuccess;
}

}  // extern "C"
